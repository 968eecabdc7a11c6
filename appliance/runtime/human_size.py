"""How many bytes, in words. Knows nothing else."""

from math import ceil

MIB = 2**20


def human_size(num_bytes: int) -> str:
    """Return a size in binary units: 98.3 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", MIB), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def enough_size(num_bytes: int) -> str:
    """Return a size that a setting takes and that is no smaller: 99MiB."""
    return f"{ceil(num_bytes / MIB)}MiB"


def held_size(num_bytes: int) -> str:
    """Return a size that a setting takes and that is no larger: 98MiB; in bytes below one MiB."""
    return f"{num_bytes // MIB}MiB" if num_bytes >= MIB else str(num_bytes)
