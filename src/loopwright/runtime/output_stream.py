"""The output of an agent's program as it came, redacted, compressed and bounded."""

import zlib

from loopwright.runtime.redaction import MARGIN_CHARS, Redaction

MOST_BYTES = 16 << 20
LONGEST_LINE = 256 * 1_024
_GZIP = 31  # the window bits of zlib for the gzip format


class OutputStream:
    """Collects bytes; whole lines are redacted together, so that no secret is split in two."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._compressor = zlib.compressobj(wbits=_GZIP)
        self._parts: list[bytes] = []
        self._line = b""
        self._total = 0
        self._finished: bytes | None = None
        self.broken = False

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        room = MOST_BYTES - self._total
        self._total += len(chunk)
        if room <= 0 or self._finished is not None or self.broken:
            return
        data = self._line + chunk[:room]
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LONGEST_LINE:
            end = len(data) - MARGIN_CHARS
        self._line = data[end:]
        if end:
            self._write(data[:end])

    def _write(self, data: bytes) -> None:
        self._parts.append(self._compressor.compress(self._redaction.stream(data)))

    def finish(self) -> bytes:
        """Everything, in the gzip format; nothing when there was no output."""
        if self.broken or not self._total:
            return b""
        if self._finished is None:
            self._write(self._line)
            if self._total > MOST_BYTES:
                cut = self._total - MOST_BYTES
                self._write(f"\n[cut: {cut:,} of {self._total:,} bytes]\n".encode())
            self._finished = b"".join([*self._parts, self._compressor.flush()])
            self._parts, self._line = [], b""
        return self._finished
