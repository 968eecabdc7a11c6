"""Server-sent events out of a stream of bytes. Knows nothing of HTTP or of what an event means."""

from collections.abc import Iterator
from dataclasses import dataclass

# A snapshot with a thousand sequences is about 150 KB; what goes past this is not an appliance.
MAX_EVENT_BYTES = 8 * 2**20


class EventTooLargeError(ValueError):
    """An event passes `MAX_EVENT_BYTES`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, `message` unless given, and its data lines joined."""

    name: str
    data: bytes


class EventDecoder:
    """Holds the unfinished line and event between two pieces of the stream."""

    def __init__(self) -> None:
        self._tail = b""
        self._name = "message"
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yields each event that `piece` completes. Raises EventTooLargeError."""
        *lines, self._tail = (self._tail + piece).split(b"\n")
        if len(self._tail) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event passes {MAX_EVENT_BYTES} bytes")
        for line in lines:
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._finish()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _finish(self) -> Event | None:
        event = Event(self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data = "message", []
        return event
