"""What INT8 does to each matrix's own product on real activations: error, cosine, and how far those reach.

A linear operation that watches: it computes what it stands in for, and keeps sums beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.int8_weight import pack_int8, unpack_int8
from kernels.linear.reference import linear
from kernels.ops import AnyWeight, LinearWeight


@dataclass(slots=True)
class ErrorSums:
    """Over all tokens that a matrix was multiplied with. y is its product, e what INT8 adds to it."""

    y_y: float = 0.0
    y_e: float = 0.0
    e_e: float = 0.0
    x_x: float = 0.0
    num_inputs: int = 0
    largest_input: float = 0.0

    @property
    def relative(self) -> float:
        """|e| / |y|."""
        return math.sqrt(self.e_e / self.y_y) if self.y_y else 0.0

    @property
    def cosine(self) -> float:
        """Between y and y + e."""
        lengths = math.sqrt(self.y_y * max(self.y_y + 2 * self.y_e + self.e_e, 0.0))
        return (self.y_y + self.y_e) / lengths if lengths else 1.0

    @property
    def reach(self) -> float:
        """The largest input over their root mean square: what a scale for all of them must span."""
        mean_square = self.x_x / self.num_inputs if self.num_inputs else 0.0
        return self.largest_input / math.sqrt(mean_square) if mean_square else 0.0


class WatchedLinear:
    """Stands in for `Ops.linear`; matrices that `names` does not know are only multiplied."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names  # by id(weight)
        self.sums = {name: ErrorSums() for name in names.values()}

    def __call__(self, x: torch.Tensor, weight: AnyWeight) -> torch.Tensor:
        product = linear(x, weight)
        name = self._names.get(id(weight))
        if name is not None and isinstance(weight, LinearWeight):
            self._add(self.sums[name], x.float(), weight.weight.float())
        return product

    def _add(self, sums: ErrorSums, x: torch.Tensor, rows: torch.Tensor) -> None:
        y = x @ rows.T
        e = x @ (unpack_int8(pack_int8(rows)) - rows).T
        sums.y_y += float((y * y).sum())
        sums.y_e += float((y * e).sum())
        sums.e_e += float((e * e).sum())
        sums.x_x += float((x * x).sum())
        sums.num_inputs += x.numel()
        sums.largest_input = max(sums.largest_input, float(x.abs().max()))
