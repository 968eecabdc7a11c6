"""Draws lines and points as one inline SVG. Knows no plotting library and no meaning of the values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 34, 44
# Told apart by people who see no red or green as well (Okabe, Ito 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or single points where `is_line` is false. `bands` are (low, high) of each point."""

    name: str
    points: tuple[tuple[float, float], ...]
    bands: tuple[tuple[float, float], ...] = ()
    is_line: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction: what it is called and whether equal steps are equal ratios."""

    label: str
    is_log: bool = False


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return an `<svg>` for a page whose style gives the class names their colours; "" for no points."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [px for one in drawn for px, _ in one.points]
    ys = [py for one in drawn for _, py in one.points] + [v for one in drawn for b in one.bands for v in b]
    across = _Scale(xs, _LEFT, WIDTH - _RIGHT, is_log=x.is_log, from_zero=False)
    up = _Scale(ys, HEIGHT - _BOTTOM, _TOP, is_log=y.is_log, from_zero=not y.is_log)
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    turned = f'transform="translate(14,{HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
        f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>',
        f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>',
        f"<text {turned}>{escape(y.label)}</text>",
        *(_x_tick(across, value) for value in across.ticks()),
        *(_y_tick(up, value) for value in up.ticks()),
        *(_series(one, index, across, up) for index, one in enumerate(drawn)),
        "</svg>",
    ]
    return "".join(parts)


class _Scale:
    """From values to pixels."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, is_log: bool, from_zero: bool
    ) -> None:
        self._is_log = is_log
        self.low, self.high = (0.0 if from_zero else min(values)), max(values)
        if is_log:
            self.low, self.high = max(self.low, 1e-12), max(self.high, 1e-12)
        if self.high <= self.low:
            self.low, self.high = (self.low / 2, self.high * 2) if is_log else (self.low, self.low + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self._is_log:
            value, low, high = (math.log10(max(v, 1e-12)) for v in (value, low, high))
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values, at most about six."""
        if self._is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            inside = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
            return inside if len(inside) <= 7 else [v for v in inside if f"{v:e}".startswith("1")]
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw)
        first = math.ceil(self.low / step)
        return [index * step for index in range(first, math.floor(self.high / step) + 1)]


def _x_tick(scale: _Scale, value: float) -> str:
    x = scale.at(value)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
    )


def _y_tick(scale: _Scale, value: float) -> str:
    y = scale.at(value)
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    )


def _series(one: Series, index: int, across: _Scale, up: _Scale) -> str:
    colour = _COLOURS[index % len(_COLOURS)]
    places = [(across.at(x), up.at(y)) for x, y in one.points]
    parts = [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up.at(low):.1f}" y2="{up.at(high):.1f}" stroke="{colour}"/>'
        for (x, _), (low, high) in zip(places, one.bands, strict=False)
    ]
    if one.is_line:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    if not one.is_line or len(places) < 40:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
    top, left = _TOP + 8 + index * 18, WIDTH - _RIGHT + 10
    parts.append(
        f'<rect x="{left}" y="{top - 8}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{left + 15}" y="{top + 1}">{escape(one.name)}</text>'
    )
    return "".join(parts)
