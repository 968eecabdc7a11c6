"""How many CPU threads this process may keep busy: cores it may run on, and its control group's quota."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_threads(cgroup: Path = _CGROUP) -> int:
    """Return the whole cores that are ours, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_cores(cgroup)
    return max(1, cores if quota is None else min(cores, round(quota)))


def _quota_cores(cgroup: Path) -> float | None:
    """The quota in cores, of control groups of version 2 or 1; None where there is none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    if quota.strip() in ("max", "-1"):
        return None
    return int(quota) / int(period)
