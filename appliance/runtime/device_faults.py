"""What a device's errors mean, in a sentence. Knows no step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from appliance.errors import DeviceLost


@contextmanager
def device_faults() -> Iterator[None]:
    """Raise DeviceLost for a device's error: after one, CUDA runs nothing more in this process."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.AcceleratorError) and "Triton Error [CUDA]" not in str(error):
            raise
        first_line = str(error).splitlines()[0]
        raise DeviceLost(
            f"the GPU stopped ({first_line}); restart the appliance, and if it happens again the machine: "
            "its driver's log says more"
        ) from error
