"""Whether a matrix's inputs lose less in INT8 by one scale for all tokens than by one for each.

A token's own scale spans its largest value, so its steps are no coarser than those of a scale that spans all.
Where tokens are alike one scale does as well; and since it is searched for it wins where every token has some
large value that the matrix hardly heeds: it cuts that off, and rounds all else finer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from appliance.eval.linear_errors import LinearError, joined
from kernels.int8_weight import quantize_at, quantize_rows

# Of the largest input, spread evenly by ratio down to a sixteenth.
_SPANS = tuple(2 ** (-step / 4) for step in range(17))
_STEPS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenInputs:
    """One matrix as it is held, rows (O, I), with inputs (R, I) and gradients (R, O) of its products."""

    x: torch.Tensor
    rows: torch.Tensor
    gradient: torch.Tensor
    largest: float  # of all inputs, not only of these
    share: float  # of the tokens that went through it

    def half(self, start: int) -> "SeenInputs":
        """Every second row: scales are chosen by some rows and judged by the others."""
        return SeenInputs(
            x=self.x[start::2],
            rows=self.rows,
            gradient=self.gradient[start::2],
            largest=self.largest,
            share=self.share,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticInputs:
    """The best single scale, and what products lose by it and by a scale for each token."""

    scale: float
    at_once: LinearError
    by_token: LinearError

    @property
    def gain(self) -> float:
        """Above 1 the one scale loses less."""
        return self.by_token.relative / self.at_once.relative if self.at_once.relative else 1.0

    @property
    def wins(self) -> bool:
        """Whether products are no further off by it, nor answers."""
        return self.at_once.relative <= self.by_token.relative and self.at_once.effect <= self.by_token.effect


def find_static(parts: Sequence[SeenInputs]) -> StaticInputs | None:
    """Search for the scale on every second row, judge on the others; None where there is too little to see.

    `parts` are the matrices that share a name, and so a scale.
    """
    largest = max((part.largest for part in parts), default=0.0)
    chosen, judged = [part.half(0) for part in parts], [part.half(1) for part in parts if len(part.x) > 1]
    if not judged or not largest:
        return None
    scales = [largest * span / _STEPS for span in _SPANS]
    scale = min(scales, key=lambda each: sum(_lost(part, each) for part in chosen))
    return StaticInputs(scale=scale, at_once=_errors(judged, scale), by_token=_errors(judged, None))


def stepped(x: torch.Tensor, scale: float | None) -> torch.Tensor:
    """The inputs as INT8 holds them, by one scale or by each token's own."""
    if scale is not None:
        return quantize_at(x, scale).float() * scale
    steps, scales = quantize_rows(x)
    return steps.float() * scales[:, None]


def _lost(part: SeenInputs, scale: float) -> float:
    return float(((stepped(part.x, scale) - part.x) @ part.rows.T).square().sum())


def _errors(parts: Sequence[SeenInputs], scale: float | None) -> LinearError:
    errors = [
        LinearError.of(p.x @ p.rows.T, (stepped(p.x, scale) - p.x) @ p.rows.T, p.gradient) for p in parts
    ]
    return joined(errors, [part.share for part in parts])
