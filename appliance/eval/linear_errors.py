"""What INT8 does to one matrix's product on recorded inputs: error, cosine, and what it does to answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.int8_weight import pack_int8, unpack_int8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearError:
    """y is the product, e what INT8 adds to it. `effect` is in nats per token, to second order.

    With the gradient g of the logarithm of an answer's probability at y, e moves that by g e, and half its
    mean square is the divergence of the distributions.
    """

    relative: float  # |e| / |y|
    cosine: float  # between y and y + e
    effect: float

    @classmethod
    def of(cls, exact: torch.Tensor, error: torch.Tensor, gradient: torch.Tensor) -> "LinearError":
        y_y, e_e = float(exact.square().sum()), float(error.square().sum())
        y_f = y_y + float((exact * error).sum())
        length = math.sqrt(y_y * float((exact + error).square().sum()))
        return cls(
            relative=math.sqrt(e_e / y_y) if y_y else 0.0,
            cosine=y_f / length if length else 1.0,
            effect=float((gradient * error).sum(-1).square().mean()) / 2,
        )


def rounded(rows: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """The matrix as INT8 holds it, its columns scaled while it is rounded."""
    if scales is None:
        return unpack_int8(pack_int8(rows))
    return unpack_int8(pack_int8(rows * scales)) / scales


def weight_error(
    x: torch.Tensor, rows: torch.Tensor, gradient: torch.Tensor, scales: torch.Tensor | None = None
) -> LinearError:
    """Of the weights in INT8 and inputs as they are."""
    return LinearError.of(x @ rows.T, x @ (rounded(rows, scales) - rows).T, gradient)


def joined(errors: Sequence[LinearError], shares: Sequence[float]) -> LinearError:
    """Of several experts, each of which sees a share of the tokens."""
    total = sum(shares) or 1.0
    return LinearError(
        relative=sum(e.relative * s for e, s in zip(errors, shares, strict=True)) / total,
        cosine=sum(e.cosine * s for e, s in zip(errors, shares, strict=True)) / total if errors else 1.0,
        effect=sum(e.effect * s for e, s in zip(errors, shares, strict=True)),
    )
