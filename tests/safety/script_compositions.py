"""Ways of a value through a script, and places where it ends, to be combined at random."""

from collections.abc import Callable
from typing import NamedTuple


class Way(NamedTuple):
    """Some lines after which an expression holds the value."""

    lines: str
    expression: str


# Each takes an expression that holds the value and a number that makes names unique.
WAYS: dict[str, Callable[[str, int], Way]] = {
    "assignment": lambda x, n: Way(f"v{n}={x}", f'"$v{n}"'),
    "braces": lambda x, n: Way(f"v{n}={x}", f'"${{v{n}}}"'),
    "export": lambda x, n: Way(f"export v{n}={x}", f'"${{v{n}:-none}}"'),
    "default": lambda x, n: Way(f': "${{v{n}:={x}}}"', f'"$v{n}"'),
    "printf": lambda x, n: Way(f"printf -v v{n} %s {x}", f'"$v{n}"'),
    "substitution": lambda x, n: Way(f"v{n}=$(printf %s {x})", f'"$v{n}"'),
    "in-place": lambda x, n: Way("true", f'"$(printf %s {x})"'),
    "backquotes": lambda x, n: Way(f"v{n}=`printf %s {x}`", f'"$v{n}"'),
    "here-string": lambda x, n: Way(f"v{n}=$(cat <<< {x})", f'"$v{n}"'),
    "here-document": lambda x, n: Way(f"v{n}=$(cat <<END{n}\n{x[1:-1]}\nEND{n}\n)", f'"$v{n}"'),
    "read": lambda x, n: Way(f"read -r v{n} <<< {x}", f'"$v{n}"'),
    "array": lambda x, n: Way(f"v{n}=(a {x})", f'"${{v{n}[1]}}"'),
    "appended": lambda x, n: Way(f"v{n}=(); v{n}+=({x})", f'"${{v{n}[@]}}"'),
    "associative": lambda x, n: Way(f"declare -A v{n}; v{n}[k]={x}", f'"${{v{n}[k]}}"'),
    "mapfile": lambda x, n: Way(f"mapfile -t v{n} <<< {x}", f'"${{v{n}[0]}}"'),
    "process": lambda x, n: Way(f"read -r v{n} < <(printf '%s\\n' {x})", f'"$v{n}"'),
    "file": lambda x, n: Way(f"printf %s {x} > f{n}; v{n}=$(cat f{n})", f'"$v{n}"'),
    "file-short": lambda x, n: Way(f"printf %s {x} > f{n}", f'"$(<f{n})"'),
    "file-read": lambda x, n: Way(f"printf '%s\\n' {x} > f{n}; read -r v{n} < f{n}", f'"$v{n}"'),
    "tee": lambda x, n: Way(f"printf %s {x} | tee f{n} >/dev/null; cp f{n} g{n}", f'"$(<g{n})"'),
    "parameters": lambda x, n: Way(f"set -- a {x}", '"$2"'),
    "shifted": lambda x, n: Way(f"set -- a {x}; shift", '"$1"'),
    "function": lambda x, n: Way(f'f{n}() {{ v{n}="$1"; }}\nf{n} {x}', f'"$v{n}"'),
    "printed": lambda x, n: Way(f'f{n}() {{ printf %s "$1"; }}', f'"$(f{n} {x})"'),
    "two-functions": lambda x, n: Way(
        f'g{n}() {{ v{n}="$2"; }}\nf{n}() {{ g{n} a "$@"; }}\nf{n} {x}', f'"$v{n}"'
    ),
    "for": lambda x, n: Way(f"for v{n} in {x}; do :; done", f'"$v{n}"'),
    "while": lambda x, n: Way(f"while read -r l{n}; do v{n}=$l{n}; done <<< {x}", f'"$v{n}"'),
    "nameref": lambda x, n: Way(f"declare -n r{n}=v{n}; r{n}={x}", f'"$v{n}"'),
    "match": lambda x, n: Way(f"[[ {x} =~ ^(.*)$ ]]", '"${BASH_REMATCH[1]}"'),
    "trimmed": lambda x, n: Way(f"v{n}={x}", f'"${{v{n}%z}}"'),
    "if": lambda x, n: Way(f"if true; then v{n}={x}; else v{n}=1; fi", f'"$v{n}"'),
    "case": lambda x, n: Way(f"case a in a) v{n}={x} ;; esac", f'"$v{n}"'),
    "and": lambda x, n: Way(f"true && v{n}={x}", f'"$v{n}"'),
    "group": lambda x, n: Way(f"{{ v{n}={x}; }} 2>/dev/null", f'"$v{n}"'),
    "piped-loop": lambda x, n: Way(
        f"printf '%s\\n' {x} | while read -r l{n}; do echo \"$l{n}\" > f{n}; done", f'"$(cat f{n})"'
    ),
    "joined": lambda x, n: Way(f"v{n}=0; v{n}+={x}; v{n}=${{v{n}#0}}", f'"$v{n}"'),
    "tested": lambda x, n: Way(f"v{n}={x}; [[ $v{n} =~ ^[0-9]+$ ]] || echo no >&2", f'"$v{n}"'),
}
# Places where a value is data: what they print is known.
DATA: dict[str, Callable[[str], str]] = {
    "printf": lambda x: f"printf '[%s]' {x}",
    "echo": lambda x: f"echo {x} | head -c 0; printf '[%s]' {x}",
    "test": lambda x: f"[ {x} = y ] || [[ {x} == z ]] || printf '[%s]' {x}",
    "test-number": lambda x: f"[ {x} -gt 3 ] 2>/dev/null || printf '[%s]' {x}",
    "function": lambda x: f"say() {{ printf '[%s]' \"$1\"; }}\nsay {x}",
    "shell": lambda x: f'bash -c \'printf "[%s]" "$1"\' _ {x}',
    "file": lambda x: f"printf '[%s]' {x} > out.txt; cat out.txt",
    "case": lambda x: f"case {x} in y) ;; *) printf '[%s]' {x} ;; esac",
    "length": lambda x: f"len={x}; (( ${{#len}} >= 0 )) && printf '[%s]' {x}",
    "counted": lambda x: f"c=$(printf %s {x} | wc -c); (( c >= 0 )) && printf '[%s]' {x}",
}
# Places where bash or another program evaluates what it is given.
SINKS: dict[str, Callable[[str], str]] = {
    "arithmetic": lambda x: f"w={x}; (( w > 3 ))",
    "expansion": lambda x: f"echo $(( {x[1:-1]} + 1 ))",
    "number": lambda x: f"[[ {x} -eq 1 ]]",
    "number-right": lambda x: f"[[ 1 -lt {x} ]]",
    "for": lambda x: f"w={x}; for (( i = w; i < 1; i++ )); do :; done",
    "let": lambda x: f"w={x}; let 'y = w + 1'",
    "integer": lambda x: f"declare -i w; w={x}",
    "index": lambda x: f'echo "${{a[{x[1:-1]}]}}"',
    "index-set": lambda x: f"w={x}; a[w]=1",
    "offset": lambda x: f's=abc; w={x}; echo "${{s:w}}"',
    "prompt": lambda x: f'w={x}; echo "${{w@P}}"',
    "indirect": lambda x: f'w={x}; echo "${{!w}}"',
    "eval": lambda x: f"eval {x}",
    "eval-in-text": lambda x: f'eval "echo {x[1:-1]}"',
    "command": lambda x: f"{x}",
    "shell-code": lambda x: f"bash -c {x}",
    "shell-argument": lambda x: f"bash -c '(( $1 ))' _ {x}",
    "shell-input": lambda x: f"printf %s {x} | bash",
    "shell-heredoc": lambda x: f"bash <<FIN\n{x[1:-1]}\nFIN",
    "shell-file": lambda x: f"printf %s {x} > run.sh; . ./run.sh",
    "trap": lambda x: f"trap {x} EXIT",
    "test-variable": lambda x: f"test -v {x}",
    "test-bare": lambda x: f"w={x}; [ $w = y ]",
    "printf-name": lambda x: f"printf -v {x} y",
    "unset": lambda x: f"unset {x}",
    "python": lambda x: f"python3 -c {x}",
    "awk": lambda x: f"awk {x} /dev/null",
    "xargs": lambda x: f"printf %s {x} | xargs -I% sh -c 'echo %'",
    "find": lambda x: f"find . -maxdepth 0 {x}",
    "environment": lambda x: f"export W={x}; bash -c 'eval \"$W\"'",
    "called": lambda x: f'run() {{ eval "$1"; }}\nrun {x}',
    "array": lambda x: f'w=({x}); "${{w[@]}}"',
}
# Structure around lines.
AROUND: dict[str, str] = {
    "plain": "{}",
    "group": "{{\n{}\n}}",
    "if": "if true; then\n{}\nfi",
    "else": "if false; then :; else\n{}\nfi",
    "loop": "for once in 1; do\n{}\ndone",
    "while": "while true; do\n{}\nbreak; done",
    "case": "case a in\na)\n{}\n;; esac",
    "and": "true && {{\n{}\n}}",
    "subshell": "(\n{}\n)",
    "condition": "[[ a == a ]]\n{}",
    "comment": '# it\'s "a" comment\n{}',
}
