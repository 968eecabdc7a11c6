"""How many KV pages fit into memory. Knows neither tensors nor queues."""

from dataclasses import dataclass

from appliance.errors import NotEnoughMemory
from appliance.runtime.device import Device
from kernels.kv_layout import KVLayout

# Memory left to everything else. A card is ours; main memory is shared with every other program.
_SMALLEST_RESERVE = 512 * 2**20
_RESERVED_SHARE = {"cuda": 0.2, "cpu": 0.5}
# A pool that cannot hold one short conversation serves nobody.
_FEWEST_USEFUL_TOKENS = 256
_REMEDY = (
    "close other programs, choose a smaller model or --precision, set --kv-dtype int8, or lower "
    "--max-sequences"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    """How large the pool is, and the arithmetic that led there."""

    num_blocks: int
    block_bytes: int
    explanation: str

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


def plan_kv(
    layout: KVLayout,
    *,
    device: Device,
    num_layers: int,
    context_length: int,
    max_sequences: int,
    free_bytes: int,
    wanted_bytes: int | None = None,
    wanted_share: float | None = None,
    reserve_bytes: int | None = None,
) -> KVPlan:
    """Size the pool from the memory free after loading.

    `reserve_bytes` is what stays free, where a backend has measured what it needs; else a share.

    Without a wish: what is free less the reserve, but no more than `max_sequences` full contexts can use.
    Raises NotEnoughMemory when not even a short conversation fits, or a wish exceeds what is free.
    """
    block_bytes = layout.token_bytes * layout.block_size * num_layers
    if reserve_bytes is None:
        reserve_bytes = max(_SMALLEST_RESERVE, int(free_bytes * _RESERVED_SHARE[device.type]))
    useful_blocks = max_sequences * -(-context_length // layout.block_size)
    if wanted_bytes is not None or wanted_share is not None:
        budget = wanted_bytes if wanted_bytes is not None else int(free_bytes * (wanted_share or 0))
        wish = f"{human_size(budget)} asked for"
        if budget > free_bytes:
            raise NotEnoughMemory(
                f"the KV pool was set to {human_size(budget)} and {human_size(free_bytes)} are free; "
                "lower --kv-memory"
            )
        remedy = "raise --kv-memory"
    else:
        budget = free_bytes - reserve_bytes
        remedy = _REMEDY
        wish = f"{human_size(free_bytes)} free - {human_size(reserve_bytes)} reserve"
    num_blocks = min(max(budget, 0) // block_bytes, useful_blocks)
    fewest_blocks = -(-min(_FEWEST_USEFUL_TOKENS, context_length) // layout.block_size)
    if num_blocks < fewest_blocks:
        raise NotEnoughMemory(
            f"the KV pool needs at least {human_size(fewest_blocks * block_bytes)} and {wish} leave "
            f"{human_size(max(budget, 0))}; {remedy}"
        )
    explanation = (
        f"KV pool: {wish} = {human_size(budget)}; {max_sequences} sequences x {context_length} "
        f"tokens use at most {useful_blocks} blocks; {num_blocks} blocks x {layout.block_size} tokens x "
        f"{human_size(layout.token_bytes * num_layers)} = {human_size(num_blocks * block_bytes)}"
    )
    return KVPlan(num_blocks=num_blocks, block_bytes=block_bytes, explanation=explanation)


def human_size(num_bytes: int) -> str:
    """Return a size in binary units: 98.3 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
