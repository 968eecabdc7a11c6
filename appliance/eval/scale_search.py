"""Finds scales of a matrix's input channels with which INT8 loses least on recorded inputs.

Channels with large inputs get finer steps: their columns grow by a power of their root mean square, which is
searched for. Where channels share their source, as a group's query heads do, they share their scale.
"""

import torch

from appliance.eval.linear_errors import rounded

_POWERS = (0.25, 0.5, 0.75, 1.0)
# Beyond these a 16-bit norm or row that is divided by a scale would lose more than INT8 gains.
_BOUNDS = (1 / 64, 64.0)


def find_scales(
    x: torch.Tensor, rows: torch.Tensor, *, group: tuple[int, int, int] | None = None
) -> torch.Tensor | None:
    """Return scales (I) for the columns of `rows` (O, I), None where INT8 as it is loses least on x (R, I).

    `group` is (KV heads, query heads of each, head size) where the inputs are heads' outputs.
    """
    strength = x.square().mean(0)
    if group is not None:
        strength = strength.view(group).mean(1, keepdim=True).expand(group).reshape(-1)
    strength = strength.clamp_min(strength.max() * 1e-8).sqrt()
    best, least = None, _lost(x, rows, None)
    for power in _POWERS:
        scales = strength**power
        scales = (scales / scales.log().mean().exp()).clamp(*_BOUNDS)
        lost = _lost(x, rows, scales)
        if lost < least:
            best, least = scales, lost
    return best


def _lost(x: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> float:
    return float((x @ (rounded(rows, scales) - rows).T).square().sum())
