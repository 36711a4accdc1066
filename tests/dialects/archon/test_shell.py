"""Values in shell texts: they arrive whole, or the text is refused, and nothing in them runs."""

import json
from pathlib import Path

import pytest

from loopwright.dialects.archon.shell.substitution import rewrite
from loopwright.dialects.archon.variables import Environment, EnvNames
from loopwright.model.actions import CallAgent, Repeat, RunScript, Steps
from loopwright.model.record import Lit, Ref
from tests.dialects.archon.readers import (
    READERS,
    Reader,
    named,
    of_arguments,
    of_item,
    of_node,
    of_whole_item,
    source,
)
from tests.dialects.archon.reading import lowered, plan_of
from tests.dialects.archon.running import PAYLOADS, SPECIAL_PAYLOADS, last_script, run

ALL_PAYLOADS = PAYLOADS | SPECIAL_PAYLOADS


def shell_node(text: str) -> str:
    return f"{{id: use, depends_on: [src], bash: {json.dumps(text)}}}"


def check_node(text: str) -> str:
    loop = f"{{prompt: Go, until_bash: {json.dumps(text)}, max_iterations: 1}}"
    return f"{{id: use, depends_on: [src], loop: {loop}}}"


# The ten templates: those that are taken print the value between brackets.
TAKEN = {
    "bare": shell_node("printf '[%s]' $src.output"),
    "in-double-quotes": shell_node('printf "[%s]" "$src.output"'),
    "in-single-quotes": shell_node("printf '[%s]' '$src.output'"),
    "in-here-document": shell_node("printf '['; cat <<EOF\n$src.output\nEOF\nprintf ']'"),
    "in-substitution": shell_node("printf '[%s]' \"$(printf '%s.' $src.output)\""),
    "in-until-bash": check_node("printf '[%s]' $src.output"),
}
# Where Archon pastes a value into code, it has a safe form: what is printed for a payload.
SAFE_CODE = {
    "in-arithmetic": (shell_node("echo [$(( $src.output + 1 ))]"), "[1]\n"),
    "in-python-code": (shell_node("python3 -c \"print('[$src.output]', end='')\""), None),
    "in-script": (
        "{id: use, depends_on: [src], runtime: uv, script: \"print('[$src.output]', end='')\"}",
        None,
    ),
}
PROMPT = (
    "{id: use, depends_on: [src], loop: {prompt: 'a $src.output b', until: X, max_iterations: 1}}"
)


@pytest.mark.item("C1", "archon-24")
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("template", TAKEN)
@pytest.mark.parametrize("reader", READERS, ids=named)
def test_values_arrive_whole_and_nothing_runs(
    reader: Reader, template: str, payload: str, tmp_path: Path
) -> None:
    """Whatever quotes stand around it, a script gets the value as it is and runs nothing of it."""
    value = PAYLOADS[payload]
    plan, problems = reader(TAKEN[template])
    assert problems == []
    assert plan is not None
    said, ran = run(last_script(plan), value, tmp_path)
    assert not ran
    end = {"in-here-document": "\n", "in-substitution": "."}.get(template, "")
    assert said == f"[{value}{end}]"


@pytest.mark.item("C1", "archon-80")
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("template", SAFE_CODE)
@pytest.mark.parametrize("reader", READERS, ids=named)
def test_values_in_code_have_a_safe_form(
    reader: Reader, template: str, payload: str, tmp_path: Path
) -> None:
    """Code reads the value from its environment; arithmetic takes only a number."""
    text, printed = SAFE_CODE[template]
    plan, problems = reader(text)
    assert [one.severity for one in problems] == ["warning"] * (template == "in-arithmetic")
    assert plan is not None
    said, ran = run(last_script(plan), PAYLOADS[payload], tmp_path)
    assert not ran
    assert said == (printed or f"[{PAYLOADS[payload]}]")
    assert len(TAKEN) + len(SAFE_CODE) + 1 == 10
    assert len(PAYLOADS) == 7


IN_PROMPTS = [
    pytest.param(of_node, Ref(of="output", name="src"), id="of_node"),
    pytest.param(of_item, Ref(of="item", field="value"), id="of_item"),
    pytest.param(of_whole_item, Ref(of="item"), id="of_whole_item"),
    pytest.param(of_arguments, Ref(of="message"), id="of_arguments"),
]


@pytest.mark.item("C1", "archon-19")
@pytest.mark.parametrize(("reader", "ref"), IN_PROMPTS)
def test_values_in_a_prompt_stay_apart(reader: Reader, ref: Ref) -> None:
    """In a prompt the value is a place to fill, which nobody scans again."""
    plan, _ = reader(PROMPT)
    assert plan is not None
    outer = plan.steps[-1].action
    inside = outer.body if isinstance(outer, Repeat) and outer.each else outer
    repeat = inside.steps[-1].action if isinstance(inside, Steps) else inside
    assert isinstance(repeat, Repeat)
    assert isinstance(repeat.body, CallAgent)
    assert repeat.body.prompt == (Lit(text="a "), ref, Lit(text=" b"))


@pytest.mark.item("archon-25")
@pytest.mark.parametrize("payload", ALL_PAYLOADS)
@pytest.mark.parametrize("kind", ["bash", "until_bash"])
def test_what_the_user_says_is_inert(kind: str, payload: str, tmp_path: Path) -> None:
    """The user's message is a variable of the script under its own name, whole and inert."""
    text = "printf '[%s]' $USER_MESSAGE \"$ARGUMENTS\" '$USER_MESSAGE' \"${USER_MESSAGE}\""
    node = shell_node(text) if kind == "bash" else check_node(text)
    value = ALL_PAYLOADS[payload]
    said, ran = run(last_script(plan_of(source(node))), value, tmp_path)
    assert (said, ran) == (f"[{value}]" * 4, False)


PLACES = {
    "assignment": 'x=$src.output; printf "[%s]" "$x"',
    "in-a-word": "printf '[%s]' a$src.output'b'",
    "single-inside-double": "printf '[%s]' \"a '$src.output' b\"",
    "double-inside-single": "printf '[%s]' 'a \"$src.output\" b'",
    "ansi": "printf '[%s]' $'a\\t$src.output\\'b'",
    "locale": "printf '[%s]' $\"a $src.output\"",
    "backquotes": 'x=`printf "%s" $src.output`; printf "[%s]" "$x"',
    "backquotes-in-quotes": 'x="`printf "%s" "$src.output"`"; printf "[%s]" "$x"',
    "default-value": "printf '[%s]' ${NONE:-$src.output}",
    "default-in-quotes": "printf '[%s]' \"${NONE:-$src.output}\"",
    "default-quoted": "printf '[%s]' ${NONE:-'$src.output'} ${NONE:-\"$src.output\"}",
    "quote-in-default": "printf '[%s]' \"${NONE:-'$src.output'}\"",
    "suffix": "x=a.b; printf '[%s]' ${x%$src.output} \"${x#'$src.output'}\"",
    "here-document-tabs": "cat <<-EOF\n\t[$src.output]\n\tEOF",
    "quoted-here-document": "cat <<'EOF'\n[$src.output] \\ \\n $HOME `ls` $(ls) '\nEOF",
    "escaped-delimiter": "cat <<\\EOF\n[$src.output]\nEOF",
    "two-here-documents": "cat /dev/fd/3 - 3<<A <<'B'\n[$src.output]\nA\n[$src.output]\nB",
    "substitution-in-here-document": "cat <<EOF\n[$(printf '%s' $src.output)]\nEOF",
    "here-document-in-substitution": 'x=$(cat <<EOF\n$src.output\nEOF\n); printf "[%s]" "$x"',
    "here-string": 'cat <<< "[$src.output]"',
    "array": 'a=($src.output); printf \'[%s]\' "${a[0]}" "${#a[@]}"',
    "array-lines": "a=(\n  $src.output # $src.output\n); printf '[%s]' \"${a[@]}\"",
    "for": "for x in $src.output b; do printf '[%s]' \"$x\"; done",
    "case-word": "case $src.output in x) ;; (*) printf '[%s]' $src.output ;; esac",
    "case-pattern": "case $USER_MESSAGE in a|$src.output) printf '[%s]' yes;; esac",
    "case-in-substitution": "echo \"$(case x in x) printf '[%s]' $src.output;; esac)\"",
    "test": "[ $src.output = x ] || printf '[%s]' no",
    "condition": "if [[ $src.output == x || ( -n $src.output ) ]]; then printf '[%s]' yes; fi",
    "function": "f() { printf '[%s]' \"$1\"; }; f $src.output",
    "function-word": "function f { printf '[%s]' \"$1\"; }\nf $src.output",
    "subshell": "(cd / && printf '[%s]' $src.output)",
    "group": "{ printf '[%s]' $src.output; } | cat",
    "pipe": "printf '[%s]' $src.output | cat |\n  tr -d x",
    "redirect": "printf '[%s]' $src.output 2>&1 > out; cat < out",
    "output-file": "mkdir -p d; printf x &> d/out; printf '[%s]' $src.output",
    "process": "cat <(printf '[%s]' $src.output)",
    "arithmetic-beside": "printf '[%s]' $((1 + (2))) $[1] $src.output; (( 1 )); echo ${x:0:1}",
    "escaped": "printf '[%s]' \\$src.output \"\\$src.output\" '$$src.output'",
    "comment": "# it's $src.output\nprintf '[%s]' $src.output # don't\nprintf '[%s]' a#b",
    "continued-line": "printf '[%s]' \\\n  $src.output",
    "environment": "X=$src.output printenv X; env Y=$src.output printenv Y",
    "export": "export X=$src.output; local=1; printf '[%s]' \"$X\"",
    "argument-of-code": 'bash -c \'printf "[%s]" "$1"\' _ $src.output',
    "variable-in-code": 'bash -c \'printf "[%s]" "$LW_SRC_OUTPUT"\'',
    "argument-of-python": "python3 -c 'import sys; print(sys.argv[1])' $src.output",
    "awk-value": "awk -v x=$src.output 'BEGIN { printf \"[%s]\", length(x) }' </dev/null",
    "wrapped": "timeout 9 nice -n 1 printf '[%s]' $src.output",
    "looked-up": "command -v $src.output; printf '[%s]' x",
    "option-end": "printf -- $src.output; git log -- $src.output; printf '[%s]' x",
    "message": "git commit -m $src.output; find . -name $src.output; printf '[%s]' x",
    "while-read": "while read -r l; do printf '[%s]' \"$l\"; done <<< $src.output",
    "process-id": "printf '[%s]' \"${$}\" > /dev/null; printf '[%s]' $$src.output",
    "data-for-sed": "printf '[%s]' $src.output | sed -n p | awk '{print}'",
    "before-code": "if [ $src.output = x ]; then ls; fi; printf '[%s]' x | sh -x f; printf '[]'",
    "before-shell": "{ grep $src.output f; bash < /dev/null; }; printf '[%s]' x",
    "case-before-shell": "case $src.output in x) bash </dev/null;; esac; printf '[%s]' x",
    "time": "time -p printf '[%s]' $src.output",
    "array-index": "a=([0]=$src.output); printf '[%s]' \"${a[0]}\"",
    "npm-argument": "true || npm run build -- $src.output; printf '[%s]' x",
    "escapes": "printf '[%s]' \"${NONE:-a\\}b`printf x`}\" $src.output; echo $((1 \\\n + 2))",
    "escapes-in-here-document": "cat <<EOF\n[\\$src.output $src.output]\nEOF\ncat <<'E'\nx\nE",
    "comment-in-backquotes": "printf '[%s]' `printf x # it's` $src.output",
    "unset-options": "printf -x 2>/dev/null; declare -p x 2>/dev/null; printf '[%s]' $src.output",
    "named-only": "echo use bash with $src.output; printf '[%s]' x",
    "own-program": '"$HOME/bin/tool" $src.output; printf "[%s]" x',
}


@pytest.mark.item("C1")
@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_script(place: str, tmp_path: Path) -> None:
    """In all these places a value is taken, and no payload runs."""
    script = last_script(plan_of(source(shell_node(PLACES[place]))))
    assert isinstance(script, RunScript)
    for number, value in enumerate(ALL_PAYLOADS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        said, ran = run(script, value, folder)
        assert not ran, value
        assert "[" in said or place in ("environment", "argument-of-python")


WHOLE = {
    "assignment": "[{}]",
    "in-a-word": "[a{}b]",
    "single-inside-double": "[a '{}' b]",
    "double-inside-single": '[a "{}" b]',
    "ansi": "[a\t{}'b]",
    "locale": "[a {}]",
    "backquotes-in-quotes": "[{}]",
    "default-value": "[{}]",
    "default-in-quotes": "[{}]",
    "default-quoted": "[{0}][{0}]",
    "quote-in-default": "['{}']",
    "quoted-here-document": "[{}] \\ \\n $HOME `ls` $(ls) '\n",
    "two-here-documents": "[{0}]\n[{0}]\n",
    "array": "[{}][1]",
    "for": "[{}][b]",
    "case-pattern": "[yes]",
    "function-word": "[{}]",
    "escaped": "[$src.output][$src.output][$src.output]",
    "comment": "[{}][a#b]",
    "argument-of-code": "[{}]",
    "variable-in-code": "[{}]",
}


@pytest.mark.parametrize("place", WHOLE)
def test_values_stay_whole(place: str, tmp_path: Path) -> None:
    """What a script sees is the value, byte for byte, with the quotes its author wrote."""
    script = last_script(plan_of(source(shell_node(PLACES[place]))))
    value = SPECIAL_PAYLOADS["plain"]
    said, _ = run(script, value, tmp_path)
    assert said == WHOLE[place].replace("{0}", "{}").replace("{}", value)


CODE, ARITHMETIC, OPTION = "reference-in-code", "reference-in-arithmetic", "reference-as-option"
NOT_TAKEN = {
    "command": ("$src.output x", CODE),
    "command-after-assignment": ("x=1 $src.output", CODE),
    "command-after-then": ("if true; then $src.output; fi", CODE),
    "command-after-not": ("! $src.output", CODE),
    "command-in-group": ("{ $src.output; }", CODE),
    "command-in-subshell": ("($src.output)", CODE),
    "command-in-case": ("case x in x) $src.output;; esac", CODE),
    "command-in-function": ("function f { $src.output; }", CODE),
    "command-from-output": ("$(printf '%s' $src.output)", CODE),
    "command-in-here-document": ("cat <<EOF\n`$src.output`\nEOF", CODE),
    "part-of-command": ("./$src.output", CODE),
    "unknown-program": ("$TOOL $src.output", CODE),
    "unknown-program-reads": ("echo $src.output | $TOOL", CODE),
    "eval": ("eval echo $src.output", CODE),
    "eval-of-output": ('eval "$(echo $src.output)"', CODE),
    "dot": (". $src.output", CODE),
    "trap": ("trap 'echo $src.output' EXIT", CODE),
    "shell": ("sh $src.output", CODE),
    "shell-code": ("/bin/bash -ec 'echo $src.output'", CODE),
    "shell-code-later": ('bash -o pipefail -c "echo $src.output"', CODE),
    "shell-name": ("bash -c 'echo hi' $src.output -c $src.output", CODE),
    "env-shell": ("env -u X A=b bash -c $src.output", CODE),
    "env-split": ("env -S$src.output", CODE),
    "wrapper-value": ("timeout -k $src.output 5 ls", CODE),
    "wrapper-operand": ("timeout $src.output ls", CODE),
    "nested-wrappers": ("sudo -u root nice $src.output", CODE),
    "exec": ("exec $src.output", CODE),
    "time": ("time -p $src.output", CODE),
    "xargs-shell": ("echo $src.output | xargs -I{} sh -c 'echo {}'", CODE),
    "carried": ("docker run image python -c 'print($src.output)'", CODE),
    "shell-in-group": ("echo $src.output | { ls; bash; }", CODE),
    "shell-in-loop": ("echo $src.output | while read x; do ls; sh; done", CODE),
    "shell-in-subshell": ("echo $src.output | (ls; bash)", CODE),
    "shell-in-process": ("echo $src.output | tee >(bash)", CODE),
    "group-reads-string": ("{ ls; bash; } <<< $src.output", CODE),
    "subshell-reads-file": ("(bash) < $src.output", CODE),
    "loop-reads-here-document": ("if ls; then sh; fi <<EOF\n$src.output\nEOF", CODE),
    "time-group": ("time { $src.output; }", CODE),
    "function-then-command": ("function f() (ls)\n$src.output", CODE),
    "clustered-option": ("sudo -Eu root $src.output", CODE),
    "long-option": ("sudo --user root $src.output", CODE),
    "container": ("docker run --rm image $src.output", CODE),
    "runner": ("uv run $src.output", CODE),
    "npm": ("npm run $src.output", CODE),
    "found-and-run": ("find . -exec ssh host $src.output ;", CODE),
    "found-and-evaluated": ("find . -exec $src.output ;", CODE),
    "xargs-wrapper": ("echo $src.output | xargs env", CODE),
    "option-only": ("env -i $src.output", CODE),
    "carried-anywhere": ("nosuch bash -c $src.output", CODE),
    "node": ("node --eval $src.output", CODE),
    "perl": ("perl -0777pe 's/a/$src.output/' f", CODE),
    "sed": ("sed 's/a/$src.output/' f", CODE),
    "sed-option": ("sed p $src.output", OPTION),
    "awk": ("awk '{ print $src.output }' f", CODE),
    "awk-file": ("awk -v $src.output '{ print }' f", CODE),
    "ssh": ("ssh host ls $src.output", CODE),
    "pipe-to-shell": ("echo $src.output | bash", CODE),
    "pipe-to-shell-input": ("echo $src.output | python3 -", CODE),
    "pipe-to-shell-s": ("echo $src.output | sh -es x", CODE),
    "pipe-over-lines": ("cat <<EOF |\n$src.output\nEOF\nbash", CODE),
    "group-to-shell": ("{ echo $src.output; echo; } | bash", CODE),
    "loop-to-shell": ("for x in $src.output; do echo $x; done | bash", CODE),
    "subshell-to-shell": ("(echo $src.output) | bash", CODE),
    "here-string-to-shell": ("bash <<< $src.output", CODE),
    "here-document-to-shell": ("bash <<EOF\n$src.output\nEOF", CODE),
    "quoted-here-document-to-shell": ("ssh host <<'EOF'\n$src.output\nEOF", CODE),
    "input-file-of-shell": ("bash < $src.output", CODE),
    "process-for-shell": ("bash <(echo $src.output)", CODE),
    "named-in-code": ('bash -c "$LW_SRC_OUTPUT"', CODE),
    "expanded-twice": ("echo x >&$src.output", CODE),
    "read": ("read -r $src.output", CODE),
    "declare": ("declare $src.output", CODE),
    "nameref": ("declare -n x=$src.output", ARITHMETIC),
    "integer": ("typeset -i x=$src.output", ARITHMETIC),
    "let": ("let x=$src.output", ARITHMETIC),
    "test-variable": ("[ -v $src.output ]", CODE),
    "test-two": ("test $src.output $src.output", CODE),
    "printf-variable": ("printf -v $src.output x", CODE),
    "printf-format": ("printf $src.output x", OPTION),
    "sum": ("((x = $src.output))", ARITHMETIC),
    "old-sum": ("echo $[ '$src.output' + \"$src.output\" ]", ARITHMETIC),
    "sum-of-output": ("echo $(( `echo $src.output` + 1 ))", ARITHMETIC),
    "sum-by-name": ("echo $((LW_SRC_OUTPUT))", ARITHMETIC),
    "for-sum": ("for ((i = $src.output; i < 3; i++)); do ls; done", ARITHMETIC),
    "number-test": ("[[ $src.output -lt 3 ]]", ARITHMETIC),
    "substring": ("echo ${x:$src.output}", ARITHMETIC),
    "subscript": ("echo ${x[$src.output]}", ARITHMETIC),
    "subscript-set": ("x=([$src.output]=1)", ARITHMETIC),
    "subscript-assigned": ("x[$src.output]=1", CODE),
    "indirect": ("echo ${!LW_SRC_OUTPUT}", ARITHMETIC),
    "prompt-expansion": ("echo ${USER_MESSAGE@P}", ARITHMETIC),
    "option-of-git": ("git fetch -f $src.output", OPTION),
    "option-of-find": ("find $src.output", OPTION),
    "path": ("PATH=$src.output ls", "reserved-env"),
    "exported-path": ("export BASH_ENV=$src.output", "reserved-env"),
    "path-of-another": ("sudo LD_PRELOAD=$src.output ls", "reserved-env"),
    "odd-delimiter": ("cat <<'A B'\n$src.output\nA B", "reference-in-quoted-heredoc"),
    "quoted-in-backquotes": ("x=`cat <<'A'\n$src.output\nA\n`", "reference-in-quoted-heredoc"),
    "open-double": ('echo "$src.output', "bad-shell"),
    "open-single": ("echo '$src.output", "bad-shell"),
    "open-ansi": ("echo $'$src.output\\'", "bad-shell"),
    "open-backquote": ("echo `$src.output", "bad-shell"),
    "nested-backquotes": ("echo `echo \\`$src.output\\``", "bad-shell"),
    "backquote-in-quotes-in-backquotes": ('echo `echo "`$src.output`', "bad-shell"),
    "open-here-document": ("cat <<EOF\n$src.output", "bad-shell"),
    "here-document-without-line": ("cat <<EOF $src.output", "bad-shell"),
    "here-document-without-delimiter": ("cat << \n$src.output", "bad-shell"),
    "here-document-by-value": ("cat <<$src.output\nx\n", "bad-shell"),
    "open-in-here-document": ("cat <<EOF\n$(echo $src.output\nEOF\n", "bad-shell"),
    "end-of-here-document-escaped": ("cat <<EOF\n$(echo '\nEOF\n$src.output')", "bad-shell"),
    "unknown-then-shell": ("$(true) $NONE sh $src.output", CODE),
    "many-wrappers": ("nice " * 50 + "echo $src.output", CODE),
    "code-after-options": ("bash -c -x $src.output", CODE),
    "stray-end": ("echo $src.output; }", "bad-shell"),
    "open-condition": ("[[ $src.output", "bad-shell"),
    "closing-nothing": ("echo $src.output )", "bad-shell"),
    "open-case": ("case $src.output in x) ls;;", "bad-shell"),
}


@pytest.mark.item("C1")
@pytest.mark.parametrize("place", NOT_TAKEN)
def test_places_that_take_no_value(place: str) -> None:
    """Where a value would be run or evaluated, or nobody can tell, the text is refused, unless the
    value has a safe form there.
    """
    text, code = NOT_TAKEN[place]
    plan, problems = lowered(source(shell_node(text)))
    codes = {one.code for one in problems} - {"unset-variable"}
    assert (plan is not None) == (place in SAFE)
    assert codes == ({"safe-form"} if place in SAFE else {code})
    assert all(one.hint for one in problems)


SAFE = {
    "npm",
    "sed-option",
    "nameref",
    "integer",
    "let",
    "printf-format",
    "sum",
    "sum-of-output",
    "sum-by-name",
    "for-sum",
    "number-test",
    "substring",
    "subscript",
    "subscript-set",
    "option-of-git",
    "option-of-find",
}


def test_hints_name_the_variable() -> None:
    """A refused value comes with the name under which the code finds it."""
    _, problems = lowered(source(shell_node("perl -e 'print $src.output.name'")))
    assert "$LW_SRC_OUTPUT_NAME" in (problems[0].hint or "")


@pytest.mark.parametrize("text", ["echo \"open 'quotes", "echo $HOME $(( x", "a ) b", "echo $$"])
def test_a_script_without_variables_is_left_alone(text: str) -> None:
    """A text that names no value is the author's, however odd it is."""
    made = rewrite(text, Environment(EnvNames(["src"]), text))
    assert (made.text, made.refused) == (text, [])


@pytest.mark.parametrize(("depth", "codes"), [(190, []), (20_000, ["bad-shell"])])
def test_nesting_has_a_limit_and_no_stack(depth: int, codes: list[str]) -> None:
    """Reasonable nesting is read, any other refused, and neither is the depth of Python's stack."""
    text = "echo " + "$(echo " * depth + "$src.output" + ")" * depth
    made = rewrite(text, Environment(EnvNames(["src"]), text))
    assert [one.fault.code for one in made.refused] == codes
