"""Numbers as text of constant width: bytes, seconds, rates, counts, ages. Knows no widgets and no colours.

Every figure keeps three significant digits and a fixed field, so that a value that moves does not move its
neighbours. What was not measured is a dash in the same field.
"""

import math

GAP = "–"

SECONDS_WIDTH = 7
BYTES_WIDTH = 8
RATE_WIDTH = 5
COUNT_WIDTH = 6
AGE_WIDTH = 7

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NICE_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def significant(value: float) -> str:
    """Three significant digits without an exponent, at most four characters below 9,999.5: `4.21`, `14.2`."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def seconds(value_s: float | None) -> str:
    """A latency in `SECONDS_WIDTH` cells: milliseconds below one second, then seconds, then minutes."""
    if value_s is None:
        return f"{GAP:>4}   "
    if value_s < 0.9995:
        return f"{significant(value_s * 1000):>4} ms"
    if value_s < 999.5:
        return f"{significant(value_s):>4} s "
    return f"{min(value_s / _MINUTE_S, 9999):>4.0f} m "


def round_seconds(value_s: float) -> str:
    """A round latency for a scale, not padded: `400 ms`, `1.5 s`."""
    return f"{value_s * 1000:g} ms" if value_s < 0.9995 else f"{value_s:g} s"


def byte_unit(value: float) -> tuple[float, str]:
    """The divisor and the name of the binary unit in which `value` has at most four digits."""
    divisor = 1.0
    for unit in _BYTE_UNITS[:-1]:
        if value / divisor < 1023.5:
            return divisor, unit
        divisor *= 1024
    return divisor, _BYTE_UNITS[-1]


def byte_count(num_bytes: int | None) -> str:
    """A size in `BYTES_WIDTH` cells: `1.23 GiB`."""
    if num_bytes is None:
        return f"{GAP:>4}    "
    divisor, unit = byte_unit(num_bytes)
    digits = str(num_bytes) if unit == "B" else significant(num_bytes / divisor)
    return f"{digits:>4} {unit:<3}"


def byte_share(part: int, whole: int) -> str:
    """`4.10/16.0 GiB` in 13 cells: both in the unit of the whole."""
    divisor, unit = byte_unit(whole)
    share = f"{significant(part / divisor):>4}/{significant(whole / divisor)} {unit}"
    return f"{share:<13}"


def rate(per_s: float | None) -> str:
    """Events per second in `RATE_WIDTH` cells, without the unit: `12.3`, `1,234`, `12.3k`."""
    return f"{bare_rate(per_s):>{RATE_WIDTH}}"


def bare_rate(per_s: float | None) -> str:
    """As `rate`, not padded."""
    if per_s is None:
        return GAP
    if per_s < 99.95:
        return f"{per_s:.1f}"
    if per_s < 9_999.5:
        return f"{per_s:,.0f}"
    return f"{significant(per_s / 1e3)}k" if per_s < 999_500 else f"{significant(per_s / 1e6)}M"


def count(value: int | None) -> str:
    """A whole number, not padded, at most `COUNT_WIDTH` cells: `12,345`, `1.23M`."""
    if value is None:
        return GAP
    if value < 100_000:
        return f"{value:,}"
    if value < 999_500:
        return f"{significant(value / 1e3)}k"
    return f"{significant(value / 1e6)}M" if value < 999_500_000 else f"{significant(value / 1e9)}B"


def short_count(value: int | None) -> str:
    """A whole number where room is short, not padded, at most 4 cells below a billion: `9999`, `12k`."""
    if value is None:
        return GAP
    if value < 10_000:
        return str(value)
    return f"{value // 1000}k" if value < 1_000_000 else f"{value // 1_000_000}M"


def percent(fraction: float | None) -> str:
    """A share in 4 cells: ` 63%`."""
    return f"{GAP:>4}" if fraction is None else f"{round(fraction * 100):>3}%"


def age(value_s: float) -> str:
    """How long something has lived, not padded, at most `AGE_WIDTH` cells: `4.2 s`, `1m 05s`, `2h 13m`."""
    if value_s < 10:
        return f"{math.floor(max(value_s, 0.0) * 10) / 10:.1f} s"
    whole_s = int(value_s)
    if whole_s < _MINUTE_S:
        return f"{whole_s} s"
    if whole_s < _HOUR_S:
        return f"{whole_s // _MINUTE_S}m {whole_s % _MINUTE_S:02d}s"
    if whole_s < _DAY_S:
        return f"{whole_s // _HOUR_S}h {whole_s % _HOUR_S // _MINUTE_S:02d}m"
    num_days = whole_s // _DAY_S
    return f"{num_days}d {whole_s % _DAY_S // _HOUR_S:02d}h" if num_days < 100 else f"{num_days} d"


def parameters(num_parameters: int) -> str:
    """A model's size as people say it: `135M`, `7.62B`."""
    if num_parameters < 999_500_000:
        return f"{num_parameters / 1e6:.0f}M"
    return f"{significant(num_parameters / 1e9)}B"


def nice_ceiling(value: float) -> float:
    """The smallest round number that is not below `value`: an axis end that seldom moves. 1 for 0."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next((step * magnitude for step in _NICE_STEPS if step * magnitude >= value), 10 * magnitude)
