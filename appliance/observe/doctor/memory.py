"""Memory: the machine's, the control group's limit (version 1 or 2), and whether the model fits."""

from pathlib import Path

import psutil

from appliance.observe.doctor.finding import Finding, failed, passed, size, warned
from appliance.observe.resources import CGROUP_ROOT, ProcessResources

# What a server needs beside the weights: the program with torch, and a KV pool worth having.
_BESIDE_WEIGHTS_BYTES = 2**29


def check_memory(model_bytes: int, *, cgroup_root: Path = CGROUP_ROOT) -> Finding:
    """Whether what is free holds the model (0: unknown) and a KV pool."""
    reading = ProcessResources(cgroup_root=cgroup_root).read_memory()
    needed = model_bytes + _BESIDE_WEIGHTS_BYTES
    is_limited = reading.limit_bytes < psutil.virtual_memory().total
    where = "the control group's limit of" if is_limited else "the machine's"
    summary = f"{size(reading.available_bytes)} free of {where} {size(reading.limit_bytes)}"
    if reading.available_bytes >= needed:
        return passed("memory", summary)
    lack = f"{summary}; the model and the smallest useful KV pool need about {size(needed)}"
    raise_limit = "raise the container's memory limit, " if is_limited else "close other programs, "
    remedy = raise_limit + "or choose a smaller model (`appliance list`)"
    return (warned if reading.limit_bytes >= needed else failed)("memory", lack, remedy)


def check_swap() -> Finding:
    """Whether the machine is already pushing memory to disk."""
    swap = psutil.swap_memory()
    if swap.total == 0 or swap.percent < 50:
        return passed("swap", f"{size(swap.used)} of {size(swap.total)} in use")
    return warned(
        "swap",
        f"{size(swap.used)} of {size(swap.total)} in use: swapped weights are read at the disk's speed",
        "close other programs, or choose a smaller model",
    )
