"""A grid of dots drawn as braille letters, two by four dots a cell. Knows no data, units or colours.

A cell has one layer, the highest that touched it: the caller turns layers into colours.
"""

from collections.abc import Sequence

BLANK = -1

_BASE = 0x2800
# The bit of each dot by column and by row from the bottom (Unicode's block of braille patterns).
_BITS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))

Run = tuple[str, int]


class BrailleCanvas:
    """`width` by `height` cells; dots are addressed from the lower left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width = max(width, 0)
        self.height = max(height, 0)
        self._bits = [[0] * self.width for _ in range(self.height)]
        self._layers = [[BLANK] * self.width for _ in range(self.height)]

    def mark(self, x: int, y: int, layer: int) -> None:
        """Sets one dot. `x` below 2 * width, `y` below 4 * height."""
        row, column = self.height - 1 - y // 4, x // 2
        self._bits[row][column] |= _BITS[x % 2][y % 4]
        self._layers[row][column] = max(self._layers[row][column], layer)

    def draw_line(self, values: Sequence[float | None], top: float, layer: int) -> None:
        """Joins one value per dot column, `None` breaking the line; `top` is the value of the upper edge."""
        previous: int | None = None
        for x, value in enumerate(values):
            y = None if value is None else self._dot(value, top)
            if y is not None:
                start = y if previous is None else previous + (y > previous) - (y < previous)
                for between in range(min(start, y), max(start, y) + 1):
                    self.mark(x, between, layer)
            previous = y

    def draw_area(self, values: Sequence[float | None], top: float, layer: int) -> None:
        """Fills each dot column from the lower edge up to its value."""
        for x, value in enumerate(values):
            if value is not None:
                for y in range(self._dot(value, top) + 1):
                    self.mark(x, y, layer)

    def rows(self) -> list[list[Run]]:
        """From the top: runs of text of one layer each, `BLANK` for empty cells."""
        return [_runs(bits, layers) for bits, layers in zip(self._bits, self._layers, strict=True)]

    def _dot(self, value: float, top: float) -> int:
        highest = 4 * self.height - 1
        return min(max(round(value / top * highest), 0), highest)


def _runs(bits: list[int], layers: list[int]) -> list[Run]:
    runs: list[Run] = []
    for pattern, layer in zip(bits, layers, strict=True):
        letter = chr(_BASE + pattern) if pattern else " "
        if runs and runs[-1][1] == layer:
            runs[-1] = (runs[-1][0] + letter, layer)
        else:
            runs.append((letter, layer))
    return runs
