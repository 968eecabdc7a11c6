"""Whether a block that nobody used yet costs more than one with cached content. Knows counts and times only.

A system commits memory when it is first written. Most do that at gigabytes a second; a virtual machine whose
host has to find the memory first may take longer than computing the tokens of that block again.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from appliance.engine.sequence import BlockId

# How likely it is, at best, that what is evicted next would have been asked for again.
_CHANCE = 0.25
_NUM_BLOCKS = 16  # over which the time to compute one is taken: alone, a step's fixed part would count whole


@runtime_checkable
class CommittedMemory(Protocol):
    """What a backend knows of the memory behind its pool."""

    @property
    def num_committed_blocks(self) -> int:
        """Blocks, from the first, that can be written without waiting for the system."""

    @property
    def commit_block_s(self) -> float:
        """Seconds that the system takes for one block more; 0 where that is not known."""


class FreshBlocks:
    """Compares the two costs. `prompt_s` predicts the seconds that so many prompt tokens take, or None."""

    def __init__(
        self, memory: CommittedMemory, prompt_s: Callable[[int], float | None], block_size: int
    ) -> None:
        self._memory = memory
        self._prompt_s = prompt_s
        self._block_size = block_size

    def is_dear(self, block: BlockId) -> bool:
        """Whether evicting is expected to cost less than to be the first to write this block."""
        if block < self._memory.num_committed_blocks:
            return False
        recompute_s = self._prompt_s(_NUM_BLOCKS * self._block_size)
        return recompute_s is not None and self._memory.commit_block_s > _CHANCE * recompute_s / _NUM_BLOCKS
