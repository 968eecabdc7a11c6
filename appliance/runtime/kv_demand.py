"""What a KV pool is to hold and the memory there is for it: arithmetic. Knows neither tensors nor words."""

from dataclasses import dataclass

from appliance.runtime.human_size import rounded_up
from kernels.kv_layout import KVLayout

# Memory left to everything else. A card is ours; main memory is shared with every other program.
SMALLEST_RESERVE = 512 * 2**20
_RESERVED_SHARE = {"cuda": 0.2, "cpu": 0.5}
# A pool that cannot hold one short conversation serves nobody.
FEWEST_USEFUL_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KVDemand:
    """`wanted_bytes` or `wanted_share` of what is free is a wish; without one the reserve stays free.

    `reserve_bytes` is what a backend has measured that it needs; None for a share of what is free.
    """

    layout: KVLayout
    device_type: str
    num_layers: int
    context_length: int
    max_sequences: int
    free_bytes: int
    wanted_bytes: int | None = None
    wanted_share: float | None = None
    reserve_bytes: int | None = None

    @property
    def block_bytes(self) -> int:
        return self.layout.token_bytes * self.layout.block_size * self.num_layers

    @property
    def is_wish(self) -> bool:
        return self.wanted_bytes is not None or self.wanted_share is not None

    @property
    def left_bytes(self) -> int:
        """What stays free where there is no wish."""
        if self.reserve_bytes is not None:
            return self.reserve_bytes
        return max(SMALLEST_RESERVE, int(self.free_bytes * _RESERVED_SHARE[self.device_type]))

    @property
    def budget_bytes(self) -> int:
        if self.wanted_bytes is not None:
            return self.wanted_bytes
        if self.wanted_share is not None:
            return int(self.free_bytes * self.wanted_share)
        return max(self.free_bytes - self.left_bytes, 0)

    @property
    def sequence_blocks(self) -> int:
        """Blocks of one sequence of full length."""
        return -(-self.context_length // self.layout.block_size)

    @property
    def useful_blocks(self) -> int:
        return self.max_sequences * self.sequence_blocks

    @property
    def fewest_blocks(self) -> int:
        return -(-min(FEWEST_USEFUL_TOKENS, self.context_length) // self.layout.block_size)

    @property
    def num_blocks(self) -> int:
        return min(self.budget_bytes // self.block_bytes, self.useful_blocks)

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.layout.block_size

    @property
    def num_full_sequences(self) -> int:
        """Sequences of full length that fit at once."""
        return self.num_blocks // self.sequence_blocks

    @property
    def is_met(self) -> bool:
        """Whether there is a pool worth having."""
        return self.budget_bytes <= self.free_bytes and self.num_blocks >= self.fewest_blocks

    @property
    def holds_a_sequence(self) -> bool:
        """Whether there is a pool in which one sequence may reach its full length."""
        return self.is_met and self.num_full_sequences >= 1

    def free_bytes_for(self, num_blocks: int) -> int:
        """Return how much must be free for a pool of so many blocks, wish or not."""
        pool_bytes = num_blocks * self.block_bytes
        if self.is_wish:
            return rounded_up(pool_bytes)  # settings are told in whole MiB
        if self.reserve_bytes is not None:
            return pool_bytes + self.reserve_bytes
        of_share = int(pool_bytes / (1 - _RESERVED_SHARE[self.device_type])) + 1
        return max(pool_bytes + SMALLEST_RESERVE, of_share)
