"""Reads what this process and this machine use: memory, CPU, GPUs. Knows no engine and no model.

The memory limit is the machine's or the control group's (version 2 or 1), whichever is lower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC_SELF_CGROUP = Path("/proc/self/cgroup")
# Version 1 writes "no limit" as a number near 2**63, rounded down to a page.
_NO_LIMIT_FROM = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Bytes. `available_bytes` is what this process may still take."""

    process_resident_bytes: int
    available_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMemory:
    """Bytes that the control group may hold and holds, reclaimable file pages left out."""

    limit_bytes: int
    used_bytes: int


class ProcessResources:
    """Memory and CPU of this process. `read_cpu_percent` measures since its last call."""

    def __init__(
        self, *, cgroup_root: Path = CGROUP_ROOT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process = psutil.Process()
        self._cgroup_folders = cgroup_folders(cgroup_root, _read_text(_PROC_SELF_CGROUP) or "")
        self._clock = clock
        self._last_cpu = (clock(), self._cpu_s())

    def read_memory(self) -> MemoryReading:
        machine = psutil.virtual_memory()
        limit, available = machine.total, machine.available
        for folder in self._cgroup_folders:
            group = read_cgroup_memory(folder)
            if group is not None:
                limit = min(limit, group.limit_bytes)
                available = min(available, max(0, group.limit_bytes - group.used_bytes))
        resident = self._process.memory_info().rss
        return MemoryReading(process_resident_bytes=resident, available_bytes=available, limit_bytes=limit)

    def read_cpu_percent(self) -> float | None:
        """Percent of one core since the last call; None where no time has passed."""
        now, used_s = self._clock(), self._cpu_s()
        then, used_then_s = self._last_cpu
        if now <= then:
            return None
        self._last_cpu = (now, used_s)
        return 100 * (used_s - used_then_s) / (now - then)

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def cgroup_folders(root: Path, membership: str) -> tuple[Path, ...]:
    """Folders whose memory limits bind this process, given the text of `/proc/self/cgroup`.

    A container often sees its own group as the root, so the root (version 2) and `memory/` (version 1)
    are always among them; a limit may sit on any folder on the way up.
    """
    folders: list[Path] = []
    for line in membership.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            folders += _upwards(root, path)
        elif "memory" in controllers.split(","):
            folders += _upwards(root / "memory", path)
    folders += [root, root / "memory"]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _upwards(base: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1)]


def read_cgroup_memory(folder: Path) -> CgroupMemory | None:
    """Limit and use of one control group; None where it sets no limit."""
    for limit_name, used_name, reclaimable_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _read_int(folder / limit_name), _read_int(folder / used_name)
        if limit is None or used is None or limit >= _NO_LIMIT_FROM:
            continue
        reclaimable = _read_stat(folder / "memory.stat", reclaimable_key)
        return CgroupMemory(limit_bytes=limit, used_bytes=max(0, used - reclaimable))
    return None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _read_int(path: Path) -> int | None:
    text = (_read_text(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    for line in (_read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return 0
