"""Pages of the public web for the tool `web.fetch`: every address is checked, also of redirects."""

import asyncio
from collections.abc import Callable
from urllib.parse import urldefrag, urljoin

from loopwright.app.outgoing import Target, check_url
from loopwright.app.sending import Fetched, fetch
from loopwright.errors import LoopwrightError
from loopwright.tools.native import Page
from loopwright.tools.outcome import Refusal

MOST_BYTES = 1_000_000
MOST_REDIRECTS = 5


class PublicWeb:
    """Fetches pages in a thread; the name is resolved once, and the checked address is used."""

    def __init__(
        self, check: Callable[[str], Target] = check_url, get: Callable[..., Fetched] = fetch
    ) -> None:
        self._check, self._get = check, get

    async def get(self, url: str, seconds: float) -> Page:
        url = urldefrag(url).url
        for _ in range(MOST_REDIRECTS + 1):
            found = await asyncio.to_thread(self._once, url, seconds)
            if not (300 <= found.status < 400 and found.location):
                return Page(url, found.status, found.type, found.body, found.truncated)
            url = urldefrag(urljoin(url, found.location)).url
        raise Refusal("too-many-redirects", f"more than {MOST_REDIRECTS} redirects, last to {url}")

    def _once(self, url: str, seconds: float) -> Fetched:
        try:
            return self._get(self._check(url), seconds=seconds, limit=MOST_BYTES)
        except LoopwrightError as error:
            raise Refusal("not-allowed", f"{url[:200]}: {error.message}") from None
        except OSError as error:
            raise Refusal("unreachable", f"{url[:200]} cannot be reached: {error}") from None
