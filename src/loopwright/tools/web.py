"""The tool `web.fetch`: a page of the public web as text, for agents with full access."""

import re
from html.parser import HTMLParser

from loopwright.model.messages import ToolSpec
from loopwright.tools.gate import Limit
from loopwright.tools.native import Bench, Call, Native, schema, text
from loopwright.tools.outcome import Refusal, ToolOutcome, said

SECONDS = 60
_HIDDEN = ("script", "style", "noscript", "template", "svg")
_BLOCKS = ("p", "div", "br", "li", "tr", "section", "article", "pre", "h1", "h2", "h3", "h4")
_LINES = re.compile(r"[ \t]*\n\s*\n\s*")
_TEXTS = ("text/", "application/json", "application/xml", "application/xhtml", "+json", "+xml")


async def _fetch(bench: Bench, call: Call) -> ToolOutcome:
    if bench.web is None or bench.commands.offline:
        raise Refusal("no-network", "this agent has no network")
    page = await bench.web.get(call.text("url"), call.seconds)
    if page.type and not any(one in page.type.lower() for one in _TEXTS):
        raise Refusal("not-text", f"{page.url} is {page.type}, not text")
    content = page.body.decode(errors="replace")
    if "html" in page.type.lower():
        content = html_text(content)
    return said(
        {
            "url": page.url,
            "status": page.status,
            "type": page.type,
            "text": content,
            "truncated": page.truncated,
        },
        error=page.status >= 400,
    )


def html_text(html: str) -> str:
    """What a reader sees of a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return _LINES.sub("\n\n", "".join(reader.parts)).strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


WEB_TOOL = Native(
    spec=ToolSpec(
        name="web.fetch",
        description="Read a page of the public web as text. Addresses of this machine and of its "
        "network are refused.",
        schema=schema(("url",), url=text("https://HOST/PATH", most=2_000)),
    ),
    limit=Limit(seconds=SECONDS, at_once=4),
    repeatable=True,
    async_work=_fetch,
)
