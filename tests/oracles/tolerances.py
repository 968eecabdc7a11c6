"""How far an operation may be from its float64 formula: the one table, by the type its result is given in.

The unit is the largest magnitude of the expected result, or 1 where that is smaller: a sum's rounding
error grows with its terms, not with what is left of them after cancelling.
"""

import numpy as np
import torch

TOLERANCES = {
    torch.float32: 4e-6,  # 23 bits of mantissa, and the rounding of sums of up to a hundred terms
    torch.float16: 1e-3,  # 10 bits: half a unit in the last place is 4.9e-4
    torch.bfloat16: 8e-3,  # 7 bits: half a unit in the last place is 3.9e-3
}


def assert_close(actual: torch.Tensor, expected: np.ndarray, dtype: torch.dtype | None = None) -> None:
    """Compare with a float64 result. `dtype` is the coarsest type on the way, by default the result's own."""
    assert tuple(actual.shape) == expected.shape
    found = actual.double().numpy()
    assert np.isfinite(found).all(), "the result is not finite everywhere"
    limit = TOLERANCES[dtype or actual.dtype] * max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(found - expected).max(initial=0.0))
    assert error <= limit, f"off by {error:.3g}; the table allows {limit:.3g}"
