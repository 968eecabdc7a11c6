"""Decodes one HTTP/1.1 answer, fed in pieces, into server-sent events. Knows bytes; knows no clock.

Of the protocol only what a stream of events needs: a status, chunked or plain bodies, `data:` lines.
"""

_HEAD_END = b"\r\n\r\n"


class ResponseDecoder:
    """Feed it an answer's bytes in any pieces; it gives the events that each piece completed."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.is_complete = False
        self._raw = bytearray()
        self._lines = bytearray()
        self._is_chunked = False
        self._chunk_left = 0

    @property
    def rest(self) -> bytes:
        """What has come of a line that has not ended: the whole body of an answer that is no stream."""
        return bytes(self._lines)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads of the `data:` lines that ended in this piece. Raises ValueError."""
        self._raw += data
        if self.status is None and not self._take_head():
            return []
        self._take_body()
        return self._take_events()

    def _take_head(self) -> bool:
        end = self._raw.find(_HEAD_END)
        if end < 0:
            return False
        status_line, *headers = bytes(self._raw[:end]).split(b"\r\n")
        version, _, rest = status_line.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"this is no HTTP/1.1 answer: {status_line[:40]!r}")
        self.status = int(rest[:3])
        self._is_chunked = any(
            header.lower().startswith(b"transfer-encoding:") and b"chunked" in header.lower()
            for header in headers
        )
        del self._raw[: end + len(_HEAD_END)]
        return True

    def _take_body(self) -> None:
        if not self._is_chunked:
            self._lines += self._raw
            self._raw.clear()
            return
        while self._raw and not self.is_complete:
            if self._chunk_left > 0:
                self._take_chunk_data()
            elif not self._take_chunk_size():
                return

    def _take_chunk_data(self) -> None:
        part = self._raw[: self._chunk_left]
        self._lines += part
        self._chunk_left -= len(part)
        del self._raw[: len(part)]

    def _take_chunk_size(self) -> bool:
        # The line end after the chunk before, where there was one.
        start = 2 if self._raw.startswith(b"\r\n") else 0
        end = self._raw.find(b"\r\n", start)
        if end < 0:
            return False
        self._chunk_left = int(bytes(self._raw[start:end]).split(b";")[0], 16)
        self.is_complete = self._chunk_left == 0
        del self._raw[: end + 2]
        return True

    def _take_events(self) -> list[bytes]:
        *lines, rest = bytes(self._lines).split(b"\n")
        self._lines = bytearray(rest)
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
