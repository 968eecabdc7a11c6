"""Times work on a device, and what the device does at best: copies and large products."""

import time
from collections.abc import Callable

import torch

from benchmarks.gpu.plan import CheckPlan


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_s(run: Callable[[], object], plan: CheckPlan, *, burst: int = 4) -> float:
    """The median time of a run, each reading over a burst of them, after two that do not count."""
    for _ in range(2 if plan.is_gpu else 1):
        run()
    times = []
    for _ in range(plan.repeats):
        synchronize(plan.device)
        started = time.perf_counter()
        for _ in range(burst):
            run()
        synchronize(plan.device)
        times.append((time.perf_counter() - started) / burst)
    return sorted(times)[len(times) // 2]


def copy_bandwidth(plan: CheckPlan) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.ones(plan.copy_bytes, dtype=torch.uint8, device=plan.device)
    target = torch.empty_like(source)
    return 2 * plan.copy_bytes / median_s(lambda: target.copy_(source), plan)


def matmul_rate(plan: CheckPlan) -> float:
    """Operations per second of a large square product."""
    size = plan.matmul_size
    a, b = (torch.ones(size, size, dtype=plan.dtype, device=plan.device) for _ in range(2))
    return 2 * size**3 / median_s(lambda: a @ b, plan)
