"""The processor: its cores, its instruction sets, how much of it is ours. Knows no model."""

import os
import platform
import sys
from pathlib import Path

from appliance.observe.doctor.finding import Finding, passed, warned
from appliance.runtime.threads import usable_threads

CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
# Best first: what the native engine's levels need, in the kernel's words for x86-64 and for Arm.
_LEVELS = (
    (
        "AVX-512 with tiles (AMX)",
        {"avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"},
    ),
    ("AVX-512 with VNNI", {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}),
    ("AVX2 with VNNI", {"avx2", "fma", "avx_vnni"}),
    ("AVX2", {"avx2", "fma", "f16c"}),
    ("NEON with dot products", {"asimddp"}),
)
_MIN_OPEN_FILES = 1024  # one for each client's connection


def check_hardware(cpuinfo: Path = CPUINFO) -> Finding:
    """Name the processor and the system."""
    model = _cpuinfo_field(cpuinfo, "model name") or platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release()}"
    return passed("hardware", f"{model}, {os.cpu_count()} cores, {platform.machine()}, {system}")


def check_instruction_sets(cpuinfo: Path = CPUINFO) -> Finding:
    """Whether the native engine has a fast form for this processor."""
    flags = set((_cpuinfo_field(cpuinfo, "flags") or _cpuinfo_field(cpuinfo, "Features") or "").split())
    if not flags:
        return passed("instructions", "the system does not list them; the native engine asks the processor")
    level = next((name for name, needed in _LEVELS if needed <= flags), None)
    if level is not None:
        return passed("instructions", f"{level}: the native engine has a form for it")
    return warned(
        "instructions",
        "neither AVX2 nor Arm's dot products: the native engine runs in its slow portable form",
        "use a machine with a newer processor, or in a virtual machine pass the host's processor through",
    )


def check_cpu_share(cgroup: Path = CGROUP) -> Finding:
    """How many cores this process may use, by affinity and by its control group."""
    usable, present = usable_threads(cgroup), os.cpu_count() or 1
    if usable >= present:
        return passed("cpu share", f"all {present} cores")
    return warned(
        "cpu share",
        f"{usable} of {present} cores: a control group or an affinity mask keeps the others away",
        "raise the container's CPU limit (--cpus, resources.limits.cpu) if more speed is wanted",
    )


def check_open_files() -> Finding:
    """How many connections the system lets us hold."""
    if sys.platform == "win32":
        return passed("open files", "this system sets no limit that matters")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES:
        return passed("open files", f"up to {soft}" if soft != resource.RLIM_INFINITY else "no limit")
    return warned(
        "open files",
        f"at most {soft} files and connections at once; {_MIN_OPEN_FILES} are usual",
        f"raise it with `ulimit -n {_MIN_OPEN_FILES}`"
        + ("" if hard == resource.RLIM_INFINITY or hard >= _MIN_OPEN_FILES else ", as the administrator"),
    )


def _cpuinfo_field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), None)
