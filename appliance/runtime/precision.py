"""From the words a user writes for precision to element types. Knows one machine's abilities, no model."""

import logging

import torch

from appliance.errors import BadSetting, NoUsableGpu
from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from appliance.runtime.precision_names import BITSANDBYTES, INT8

logger = logging.getLogger(__name__)
_DENSE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def weight_dtype(precision: str, device: torch.device) -> tuple[str, torch.dtype]:
    """Return the precision's name and type; `auto` is bf16 on a GPU that computes it, else f32.

    On a CPU the two take the same time here (eager decode is bound by its many small calls), so f32 it is.

    Raises BadSetting for a precision that this backend does not run.
    """
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "f32"
    if precision in (*INT8, *BITSANDBYTES):  # of the tables and of kept matrices
        return precision, torch.bfloat16
    if precision not in _DENSE:
        raise BadSetting(
            f"--precision {precision} does not run on the eager backend; choose auto, f32, bf16, f16, int8, "
            "int8-mixed, nf4 or llm.int8",
            param="precision",
        )
    return precision, _DENSE[precision]


def kv_dtype(wanted: str, weights: str) -> tuple[str, torch.dtype]:
    """Return the KV cache's name and type; `auto` follows the weights."""
    name = weights if wanted == "auto" else wanted
    return name, (torch.int8 if name == "int8" else _DENSE[name])


def torch_device(wanted: str) -> torch.device:
    """Return the torch device of that name. Raises BadSetting for no name of one, NoUsableGpu for no card.

    `auto` is the CPU where no card can be used, and says why: who asks has found a driver for one.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        logger.warning("the CPU serves: %s", why_no_gpu(read_gpu(torch.device("cuda"))))
        return torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadSetting(f"--device is '{wanted}'; choose auto, cpu, cuda or cuda:N", param="device")
    num_found = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= num_found:
        trouble = why_no_gpu(read_gpu(device)) if not num_found else _cards_there_are(num_found)
        raise NoUsableGpu(
            f"--device {wanted} cannot be used: {trouble}. Without a GPU: --device auto", param="device"
        )
    return device


def _cards_there_are(num_found: int) -> str:
    last = "only cuda:0 is" if num_found == 1 else f"cuda:0 to cuda:{num_found - 1} are"
    return f"{last} there"
