"""`shell.exec`: what may be started, how it ends, and that nothing of it stays."""

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox.bubblewrap import works
from loopwright.tools.builtin import ShellRules, ToolLimit
from loopwright.tools.results import ToolCallResult
from tests.agents.leaping import leap_when
from tests.tools.boxes import ALL, CANARY, Room, furnish, inside, problem, run, value

PYTHON = Path(sys.executable)
RULES = ShellRules(
    allow=("cat", "echo", "ls", "git", "rm", "npm test", str(PYTHON), "./run.sh"),
    deny=("rm -rf", "git push --force", "--no-verify"),
)
GRANT = replace(ALL, commands=RULES)


def shell(folder: Path, *argv: str, **more: Any) -> ToolCallResult:
    return run(folder, "shell.exec", {"argv": list(argv), **more}, GRANT)


def python(folder: Path, code: str, **more: Any) -> ToolCallResult:
    return shell(folder, str(PYTHON), "-c", code, **more)


@pytest.mark.item("aldo-31", "W26")
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        pytest.param(["whoami"], "not-allowed", id="not-listed"),
        pytest.param(["no-such-program-1"], "cannot-start", id="not-there"),
        pytest.param([""], "bad-arguments", id="empty"),
        pytest.param(["sh", "-c", "cat x"], "denied", id="shell"),
        pytest.param(["/bin/sh", "-c", "id"], "denied", id="shell-by-path"),
        pytest.param(["bash"], "denied", id="bash"),
        pytest.param(["env", "cat"], "denied", id="wrapper-env"),
        pytest.param(["xargs", "cat"], "denied", id="wrapper-xargs"),
        pytest.param(["CAT", "README.md"], "cannot-start", id="case"),
        pytest.param(["саt", "README.md"], "cannot-start", id="lookalike"),
        pytest.param(["cat ", "README.md"], "cannot-start", id="whitespace"),
        pytest.param(["cat README.md"], "cannot-start", id="one-word"),
        pytest.param(["./cat", "README.md"], "not-allowed", id="own-cat"),
        pytest.param(["src/../cat"], "not-allowed", id="own-cat-by-detour"),
        pytest.param(["./sneaky"], "denied", id="link-to-a-shell"),
        pytest.param(["npm", "publish"], "not-allowed|cannot-start", id="other-argument"),
        pytest.param(["rm", "-rf", "src"], "denied", id="deny"),
        pytest.param(["rm", "-fr", "src"], "denied", id="deny-turned-round"),
        pytest.param(["rm", "-r", "-f", "src"], "denied", id="deny-apart"),
        pytest.param(["rm", "-r", "src", "-vf"], "denied", id="deny-with-more"),
        pytest.param(["git", "push", "--force"], "denied", id="deny-words"),
        pytest.param(["git", "push", "origin", "--forc"], "denied", id="deny-abbreviated"),
        pytest.param(["git", "commit", "--no-verify=1"], "denied", id="deny-everywhere"),
        pytest.param(["/usr/bin/git", "push", "--force"], "denied|cannot-start", id="deny-by-path"),
    ],
)
def test_commands_that_are_refused(tmp_path: Path, argv: list[str], why: str) -> None:
    """Judged by the file that would run: no spelling, link or copy gets around the lists."""
    work = furnish(tmp_path)
    for name in ("cat", "whoami"):
        (work / name).write_text("#!/bin/sh\ntouch was-run\n")
        (work / name).chmod(0o755)
    (work / "sneaky").symlink_to("/bin/sh")
    assert problem(shell(tmp_path, *argv)) in why.split("|")
    assert not (work / "was-run").exists()
    assert (work / "src" / "main.py").exists()


@pytest.mark.item("aldo-31")
@pytest.mark.parametrize(
    "argv",
    [
        ["cat", "/etc/passwd"],
        ["cat", "../neighbour/secret.txt"],
        ["cat", "src/../../neighbour/secret.txt"],
        ["cat", "link"],
        ["cat", "up/neighbour/secret.txt"],
        ["cat", "~/.ssh/id_rsa"],
        ["git", "-C", "/", "status"],
        ["git", "-C/", "status"],
        ["git", "--git-dir=/tmp/x", "status"],
        ["git", "diff", "--output=up/new"],
        ["cat", "file:///etc/passwd"],
        ["cat", "/proc/self/environ"],
    ],
    ids=" ".join,
)
def test_arguments_that_lead_out_are_refused(tmp_path: Path, argv: list[str]) -> None:
    """A path outside is not handed to a program, in whichever part of an argument it stands."""
    work = furnish(tmp_path)
    (work / "link").symlink_to("../neighbour/secret.txt")
    (work / "up").symlink_to("..")
    outcome = shell(tmp_path, *argv)
    assert problem(outcome) == "outside-workspace"
    assert CANARY not in outcome.text


@pytest.mark.parametrize("cwd", ["..", "/", "up", "README.md", "gone"])
@pytest.mark.item("aldo-31")
def test_it_starts_inside_the_workspace(tmp_path: Path, cwd: str) -> None:
    """No other folder is entered."""
    (furnish(tmp_path) / "up").symlink_to("..")
    assert problem(shell(tmp_path, "ls", cwd=cwd)) in {
        "outside-workspace", "not-a-folder", "not-found",
    }  # fmt: skip


@pytest.mark.item("W25")
def test_what_is_allowed_runs_without_a_shell(tmp_path: Path) -> None:
    """Words arrive as they are, in the folder that was named; a listed script of its own works."""
    work = furnish(tmp_path)
    (work / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (work / "run.sh").chmod(0o755)
    odd = "$(id); `id` | cat > x & a:b"
    assert value(shell(tmp_path, "echo", odd))["stdout"] == f"{odd}\n"
    assert value(shell(tmp_path, "ls", cwd="src"))["stdout"] == "main.py\n"
    assert value(shell(tmp_path, "./run.sh"))["stdout"] == "ran\n"
    assert value(shell(tmp_path, "cat", f"{work}/README.md"))["exit_code"] == 0


def test_an_exit_code_is_data(tmp_path: Path) -> None:
    """In the payload and beside it; a program that fails is no error of the tool."""
    outcome = python(tmp_path, "import sys; sys.exit(7)")
    assert (outcome.code, outcome.error, value(outcome)["exit_code"]) == (7, False, 7)
    killed = python(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert (killed.code, value(killed)["signal"]) == (None, 9)


@pytest.mark.item("aldo-31")
def test_output_is_cut_to_its_tail(tmp_path: Path) -> None:
    """The end of each stream, with how much there was."""
    code = (
        "import sys; sys.stdout.write('x' * 100_000 + 'END');sys.stderr.write('y' * 50_000 + 'END')"
    )
    said = value(python(tmp_path, code))
    assert (said["stdout_bytes"], said["stderr_bytes"]) == (100_003, 50_003)
    assert said["stdout_truncated"]
    assert said["stderr_truncated"]
    assert len(said["stdout"]) == len(said["stderr"]) == 8 * 1024
    assert said["stdout"].endswith("xEND")
    short = value(python(tmp_path, "print('short')"))
    assert (short["stdout_truncated"], short["stdout_bytes"]) == (False, 6)


SPAWN = (
    "import os, subprocess, sys, time;"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True);"
    "pid = os.environ['LOOPWRIGHT_SUPERVISOR'].split(':')[0];"  # it lives as long as the tree
    "open('pid.tmp', 'w').write(pid); os.rename('pid.tmp', 'pid'); print('on', flush=True);"
    "time.sleep(60)"
)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.item("aldo-31")
def test_a_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    """No exit code, the output so far, and no process left, in whichever session it hid."""

    async def play(room: Room) -> ToolCallResult:
        argv = {"argv": [str(PYTHON), "-c", SPAWN], "timeout_s": 200}
        call = asyncio.create_task(room.box(GRANT).run("shell.exec", argv))
        await leap_when((room.work / "pid").exists, seconds=250)
        return await call

    outcome = inside(tmp_path, play)
    said = value(outcome)
    assert (said["exit_code"], outcome.code, said["type"]) == (None, None, "timeout")
    assert outcome.error
    pid = tmp_path / "work" / "pid"
    assert pid.exists(), "the program did not come so far"
    assert not is_alive(int(pid.read_text()))


def test_a_limit_of_the_author_is_stricter_than_a_wish(tmp_path: Path) -> None:
    """The model may ask for less time, not for more."""
    grant = replace(GRANT, limits={"shell.exec": ToolLimit(seconds=1)})
    argv = [str(PYTHON), "-c", "import time; time.sleep(30)"]
    began = time.monotonic()
    outcome = run(tmp_path, "shell.exec", {"argv": argv, "timeout_s": 3_600}, grant)
    assert value(outcome)["type"] == "timeout"
    assert time.monotonic() - began < 20


@pytest.mark.item("W14")
def test_cancelling_ends_the_whole_tree(tmp_path: Path) -> None:
    """Whoever gives up a call leaves no process behind."""

    async def play(room: Room) -> int:
        box = room.box(GRANT)
        argv = {"argv": [str(PYTHON), "-c", SPAWN]}
        call = asyncio.create_task(box.run("shell.exec", argv))
        pid = room.work / "pid"
        while not pid.exists():
            await asyncio.wait([call], timeout=0.02)
            assert not call.done()
        call.cancel()
        await asyncio.wait([call])
        return int(pid.read_text())

    assert not is_alive(inside(tmp_path, play))


def test_programs_get_no_secret(tmp_path: Path) -> None:
    """Only harmless variables and those that were granted by name, which are blotted out."""
    grant = replace(GRANT, commands=replace(RULES, pass_env=("BUILD_TOKEN",)))
    code = "import os, json; print(json.dumps(dict(os.environ)))"

    async def play(room: Room) -> str:
        return (await room.box(grant).run("shell.exec", {"argv": [str(PYTHON), "-c", code]})).text

    text = inside(tmp_path, play, BUILD_TOKEN="granted-token-1")
    assert CANARY not in text
    assert "MY_API_KEY" not in text
    assert "granted-token-1" not in text
    assert "[BUILD_TOKEN]" in text


@pytest.mark.item("W25")
def test_nothing_is_allowed_by_itself(tmp_path: Path) -> None:
    """Without an allow list no program is started."""
    grant = replace(ALL, commands=ShellRules())
    assert problem(run(tmp_path, "shell.exec", {"argv": ["ls"]}, grant)) == "not-allowed"


def test_two_calls_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for the other to have started: one after the other would never end."""
    code = (
        "import os, sys, time\n"
        "open(sys.argv[1], 'w').close()\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
    )

    async def play(room: Room) -> list[ToolCallResult]:
        box = room.box(GRANT)
        calls = [
            box.run("shell.exec", {"argv": [str(PYTHON), "-c", code, *pair], "timeout_s": 60})
            for pair in (("a", "b"), ("b", "a"))
        ]
        return await asyncio.gather(*calls)

    assert [outcome.code for outcome in inside(tmp_path, play)] == [0, 0]


def test_a_bare_name_is_never_found_in_the_workspace(tmp_path: Path) -> None:
    """Not even when PATH leads there and the command starts in another of its folders."""
    work = furnish(tmp_path)
    (work / "bin").mkdir()
    (work / "bin" / "tool-x").write_text("#!/bin/sh\ntouch was-run\n")
    (work / "bin" / "tool-x").chmod(0o755)
    grant = replace(ALL, commands=ShellRules(allow=("tool-x",)))

    async def play(room: Room) -> ToolCallResult:
        return await room.box(grant).run("shell.exec", {"argv": ["tool-x"], "cwd": "src"})

    (tmp_path / "second").mkdir()
    path = f"{work / 'bin'}{os.pathsep}{os.environ['PATH']}"
    second = tmp_path / "second"

    async def there(room: Room) -> ToolCallResult:
        room.folder = tmp_path
        return await play(room)

    assert problem(inside(second, there, PATH=path)) == "cannot-start"


IN_SANDBOX = replace(ALL, commands=ShellRules(allow=("*",), wall="writing"))


@pytest.mark.item("coqui-26", "coqui-88")
@pytest.mark.skipif(works() is not None, reason="bubblewrap does not work here")
def test_full_access_in_a_sandbox_has_a_shell(tmp_path: Path) -> None:
    """Pipes and variables work; only the workspace is written, and no other user is reached."""

    def script(text: str) -> str:
        told = run(tmp_path, "shell.exec", {"argv": ["bash", "-c", text]}, IN_SANDBOX)
        return str(value(told)["stdout"]).strip()

    assert script("x=1; cat README.md | wc -l > lines.txt; echo $((x + 1)) $(cat lines.txt)") == (
        "2 2"
    )
    away = tmp_path / "neighbour" / "new.txt"
    assert script(f"(echo no > {away}) 2>/dev/null || echo refused") == "refused"
    assert not away.exists()
    for program in ("sudo", "ssh", "nsenter"):
        assert run(tmp_path, "shell.exec", {"argv": [program, "x"]}, IN_SANDBOX).error
