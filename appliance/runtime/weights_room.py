"""What is said of weights that do not fit, and in which precision they would. Knows sizes only."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.runtime.human_size import human_size


@dataclass(frozen=True, slots=True)
class SizedWeights:
    """A precision, and what a model's weights take in it."""

    precision: str
    num_bytes: int


def narrower_than(chosen: SizedWeights, others: Sequence[SizedWeights]) -> tuple[SizedWeights, ...]:
    """Return those that take less, in their order."""
    return tuple(
        other
        for other in others
        if other.precision != chosen.precision and other.num_bytes < chosen.num_bytes
    )


def too_large(
    name: str,
    chosen: SizedWeights,
    narrower: Sequence[SizedWeights],
    *,
    place: str,
    room_bytes: int,
    num_parameters: int,
    held_bytes: int = 0,
) -> str:
    """Say that weights do not fit, and what would: `room_bytes` hold weights and leave a pool.

    `place` says how much there is and where; `held_bytes` are other programs' and may be freed.
    """
    fitting = next((other for other in narrower if other.num_bytes <= room_bytes), None)
    if fitting is not None:
        remedy = f"--precision {fitting.precision} needs {human_size(fitting.num_bytes)}"
    else:
        smallest = min((chosen, *narrower), key=lambda sized: sized.num_bytes)
        most = max(room_bytes, 0) * num_parameters / max(smallest.num_bytes, 1) / 10**9
        remedy = "choose a smaller model"
        if most >= 0.1:
            remedy = f"choose a model under {most:.1f} billion parameters"
        if narrower:
            remedy = f"even --precision {smallest.precision} needs {human_size(smallest.num_bytes)}; {remedy}"
    close = f"close the programs that hold {human_size(held_bytes)} of it" if held_bytes else ""
    return f"'{name}' needs {human_size(chosen.num_bytes)} as {chosen.precision} and {place}; {remedy}" + (
        f", or {close}" if close else ""
    )
