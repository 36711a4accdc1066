#!/usr/bin/env bash
# The main job in one go: a small project with failing tests is fixed in a loop.
# AGENT=script (default) needs no key; AGENT=claude uses Claude Code; any other spec is passed on.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
agent=${AGENT:-script}
demo=$root/examples/demo

heading() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then
  heading() { printf '\n== %s\n' "$1"; }
fi

case $agent in
  script)
    # Quoted for the splitter of agent specs: the folder may have a space in its name.
    spec="command:python3 '${demo//\'/\'\\\'\'}/agent.py'"
    ;;
  claude)
    if ! command -v claude >/dev/null; then
      echo "AGENT=claude needs Claude Code, and there is no program 'claude' on your PATH." >&2
      echo "Install it and log in once, or run 'make demo' for the scripted agent." >&2
      exit 2
    fi
    spec=claude
    ;;
  *)
    spec=$agent
    ;;
esac

# Everything happens in a folder of its own: your runs and your settings are not touched.
play=$(mktemp -d "${TMPDIR:-/tmp}/loopwright-demo.XXXXXX")
export LOOPWRIGHT_HOME=$play/data
cp -R "$demo/project" "$play/before"
cp -R "$demo/project" "$play/project"

heading "The tests of the project before"
(cd "$play/project" && python3 -B -m unittest 2>&1 | grep -E '^(FAIL|ERROR|Ran|FAILED|OK)' || true)

heading "loopwright run examples/demo/fix-tests.yaml"
code=0
(cd "$root" && loopwright run examples/demo/fix-tests.yaml --workspace "$play/project" --agent "$spec") || code=$?
[ "$code" -ne 2 ] || exit 2  # refused: nothing was started, and the message says why

heading "What has changed"
(cd "$play" && git --no-pager diff --no-index before project) || true

heading "The tests of the project after"
(cd "$play/project" && python3 -B -m unittest 2>&1 | tail -n 3) || true

heading "loopwright show"
run=$(loopwright ls --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["runs"][0]["run"])')
loopwright show "$run"

cat <<END

Everything about this run is in the log, and stays there:
  project    $play/project
  data       $play/data
  events     LOOPWRIGHT_HOME=$play/data $(command -v loopwright) events $run
END
exit "$code"
