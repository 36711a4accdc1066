"""An MCP server that many people use, from npm, behind our toolbox."""

from pathlib import Path

import pytest

from loopwright.tools.mcp.server_records import StdioServer
from loopwright.tools.toolbox import Grant, ServerGrant
from tests.real_clis.conftest import CLIS, needs
from tests.tools.boxes import CANARY, Room, inside, problem

pytestmark = pytest.mark.real_cli


def test_the_filesystem_server_works_and_stays_inside(tmp_path: Path) -> None:
    """Listed, narrowed, called; its own refusal reaches the model as an error."""
    needs("mcp-server-filesystem")
    spec = StdioServer(argv=("node", f"{CLIS}/mcp-server-filesystem", "."))
    allow = ("read_text_file", "list_directory")
    grant = Grant(servers=(ServerGrant(name="files", spec=spec, allow=allow),))

    async def play(room: Room) -> None:
        box = room.box(grant)
        offer = await box.specs()
        assert offer.problems == ()
        assert {spec.name for spec in offer.tools} == {
            "result.more", "files.read_text_file", "files.list_directory",
        }  # fmt: skip
        read = await box.run("files.read_text_file", {"path": f"{room.work}/README.md"})
        assert "Read me" in read.text
        secret = room.folder / "neighbour" / "secret.txt"
        refused = await box.run("files.read_text_file", {"path": str(secret)})
        assert problem(refused) == "tool-error"
        assert CANARY not in refused.text
        write = {"path": f"{room.work}/x", "content": "x"}
        assert problem(await box.run("files.write_file", write)) == "unknown-tool"
        assert not (room.work / "x").exists()

    inside(tmp_path, play)
