"""Finds any of a fixed set of texts, the longest first, in time that does not grow with the set.

A regular expression of thousands of alternatives takes a tenth of a second to compile and tries them in turn;
a vocabulary may reserve 6,000 control tokens.
"""

import re
from collections.abc import Collection, Iterator


class LiteralFinder:
    """Knows the texts by their first character and their lengths."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        # Most starts fail here: a space that begins no run of spaces, a "<" that begins no marker.
        self._heads = {text[: self._lengths[text[0]][-1]] for text in self._texts}
        self._start = re.compile("[" + "".join(map(re.escape, lengths)) + "]" if lengths else r"(?!)")

    @property
    def starts(self) -> frozenset[str]:
        """The characters that the texts begin with."""
        return frozenset(self._lengths)

    def match(self, text: str, position: int) -> str | None:
        """Return the longest of the texts that begins at a position."""
        lengths = self._lengths.get(text[position], ())
        if not lengths or text[position : position + lengths[-1]] not in self._heads:
            return None
        for length in lengths:
            found = text[position : position + length]
            if found in self._texts:
                return found
        return None

    def search(self, text: str, position: int = 0) -> tuple[int, str] | None:
        """Return where the first of the texts from a position on begins, and which it is."""
        while start := self._start.search(text, position):
            found = self.match(text, start.start())
            if found is not None:
                return start.start(), found
            position = start.end()
        return None

    def split(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield what lies before each found text, which may be "", with it; at last the rest with ""."""
        end = 0
        while hit := self.search(text, end):
            start, found = hit
            yield text[end:start], found
            end = start + len(found)
        yield text[end:], ""
