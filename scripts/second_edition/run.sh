#!/bin/bash
# Moves the modules of this checkout to the packages of the second edition, from the clean state of a commit to `make check`.
# Stops at the first error. Removes this folder. Commits nothing. Usage: scripts/second_edition/run.sh [--no-check]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
step() { echo "== $(date +%T) $*"; }

if [ -z "${SECOND_EDITION_ROOT:-}" ]; then
  cd "$here/../.."
  test -z "$(git status --porcelain)" || { echo "the checkout has changes" >&2; exit 1; }
  copy=$(mktemp -d)
  cp -r "$here/." "$copy"
  SECOND_EDITION_ROOT=$PWD exec "$copy/run.sh" "$@"
fi
cd "$SECOND_EDITION_ROOT"
python=""
for one in "${PYTHON312:-}" python3.13 python3.12 "$HOME"/.pyenv/versions/3.12*/bin/python3.12 python3; do
  if [ -n "$one" ] && "$one" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then python=$one; break; fi
done
test -n "$python" || { echo "needs Python 3.12 for the codemod (PYTHON312=...)" >&2; exit 1; }

step "environment"
make -s setup
rm -r scripts/second_edition
step "move_modules.py"
"$python" -W ignore "$here/move_modules.py"
step "adapt.py"
.venv/bin/python "$here/adapt.py"
step "setup with the new pyproject.toml"
make -s setup
step "generated pages"
make -s matrix docs >/dev/null
if [ "${1:-}" != "--no-check" ]; then
  step "make check"
  make check
fi
step "done: git add -A && git commit"
