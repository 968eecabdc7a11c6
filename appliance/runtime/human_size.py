"""How many bytes, in words. Knows nothing else."""

MIB = 2**20


def human_size(num_bytes: int) -> str:
    """Return a size in binary units: 98.3 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", MIB), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def rounded_up(num_bytes: int) -> int:
    """Return whole MiB, in bytes, that are no fewer."""
    return -(-num_bytes // MIB) * MIB


def rounded_down(num_bytes: int) -> int:
    """Return whole MiB, in bytes, that are no more; below one, all of them."""
    return num_bytes // MIB * MIB or num_bytes


def setting_of(num_bytes: int) -> str:
    """Return it as a setting takes it: 98MiB, or bytes where it is not whole MiB."""
    return str(num_bytes) if num_bytes % MIB else f"{num_bytes // MIB}MiB"
