"""Tensors between sentinels: a write past either end is noticed, and a read there finds poison."""

import torch

FENCE = 64


class Fences:
    """Makes tensors with sentinels on both sides, and says whether they still stand."""

    def __init__(self) -> None:
        self._all: list[tuple[torch.Tensor, torch.Tensor]] = []

    def around(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in the middle of a larger buffer: NaN, or an integer's largest value, around it."""
        size = tensor.numel()
        poison = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
        buffer = torch.full((size + 2 * FENCE,), poison, dtype=tensor.dtype)
        buffer[FENCE : FENCE + size] = tensor.flatten()
        edges = torch.cat((buffer[:FENCE], buffer[-FENCE:])).clone()
        self._all.append((buffer, edges))
        return buffer[FENCE : FENCE + size].view(tensor.shape)

    def check(self) -> None:
        for buffer, edges in self._all:
            found = torch.cat((buffer[:FENCE], buffer[-FENCE:]))
            assert torch.equal(found.view(torch.uint8), edges.view(torch.uint8)), "written past an end"
