"""What a model's matrices are given on real text, and how much their products matter to its answers.

A linear operation that watches: it computes what it stands in for, and keeps some rows of input and, once
gradients come back, of the gradient that belongs to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kernels.linear.reference import linear
from kernels.ops import AnyWeight, LinearWeight

# Tokens whose inputs are kept of each matrix. In 16 bits, 256 rows of a model of a billion parameters are
# about half a gigabyte.
MAX_ROWS = 256


@dataclass(slots=True)
class RecordedInputs:
    """Of one matrix (O, I): kept rows of x and of the gradient, and what all of x ranged over."""

    inputs: list[torch.Tensor] = field(default_factory=list)  # bfloat16 (some, I)
    gradients: list[torch.Tensor] = field(default_factory=list)  # float32 (some, O), of log probabilities
    largest: torch.Tensor | None = None  # float32 (I): the largest of each channel
    sum_of_squares: float = 0.0
    num_inputs: int = 0

    @property
    def reach(self) -> float:
        """The largest input over their root mean square: what one scale for all of them must span."""
        mean_square = self.sum_of_squares / self.num_inputs if self.num_inputs else 0.0
        return self.span() / mean_square**0.5 if mean_square else 0.0

    def span(self, scales: torch.Tensor | None = None) -> float:
        """The largest input, channels divided by their scales where they have some."""
        if self.largest is None:
            return 0.0
        return float((self.largest if scales is None else self.largest / scales).max())

    @property
    def x(self) -> torch.Tensor:
        """Float32 (R, I)."""
        return torch.cat(self.inputs).float()

    @property
    def gradient(self) -> torch.Tensor:
        """Float32 (R, O), row by row of `x`."""
        return torch.cat(self.gradients)


class RecordingLinear:
    """Stands in for `Ops.linear`; matrices that `names` does not know are only multiplied."""

    def __init__(self, names: Mapping[int, str], *, rows_per_call: int) -> None:
        self._names = names  # by id(weight)
        self._rows_per_call = rows_per_call
        self.recorded = {key: RecordedInputs() for key in names}

    def __call__(self, x: torch.Tensor, weight: AnyWeight) -> torch.Tensor:
        product = linear(x, weight)
        recorded = self.recorded.get(id(weight))
        if recorded is None or not isinstance(weight, LinearWeight) or not len(x):
            return product
        if not product.requires_grad:
            product.requires_grad_()
        self._record(recorded, x.detach().float(), product)
        return product

    def _record(self, recorded: RecordedInputs, x: torch.Tensor, product: torch.Tensor) -> None:
        largest = x.abs().amax(0)
        recorded.largest = largest if recorded.largest is None else recorded.largest.maximum(largest)
        recorded.sum_of_squares += float(x.square().sum())
        recorded.num_inputs += x.numel()
        if sum(map(len, recorded.inputs)) >= MAX_ROWS:
            return
        picked = torch.arange(0, len(x), max(1, len(x) // self._rows_per_call))
        recorded.inputs.append(x[picked].bfloat16())
        product.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: recorded.gradients.append(gradient[picked].float())
        )
