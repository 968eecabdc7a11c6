"""Ends a text before a stop string, however the text is cut. Knows text; knows neither tokens nor clients."""


class StopMatcher:
    """Passes text on until a stop string is complete, and holds back only what may be the start of one.

    The stop string that is complete first ends the text, just before it; of several complete at the same
    character, the longest. How the text is cut into pieces changes nothing. Empty stop strings are ignored.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to send now, and whether a stop string has ended it."""
        if self.matched is not None:
            return "", True
        held = self._held + text
        found = self._first_match(held)
        if found is not None:
            start, length = found
            self._held, self.matched = "", held[start : start + length]
            return held[:start], True
        safe = len(held) - self._num_pending(held)
        self._held = held[safe:]
        return held[:safe], False

    def flush(self) -> str:
        """Return what was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return where the stop string that is complete first begins, and its length."""
        found = [(text.find(stop), len(stop)) for stop in self._stops]
        ends = [(start + length, start, length) for start, length in found if start >= 0]
        return min(ends)[1:] if ends else None

    def _num_pending(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
