"""How many blocks an admission leaves over for those that run to grow into. Knows counts only."""

from collections.abc import Iterable

from appliance.engine.block_pool import BlockPool
from appliance.engine.sequence import Sequence

_SMALL = 0.125  # of the headroom


class Headroom:
    """Keeps `share` of the pool free at admission, or what the running may yet need if that is less.

    Without headroom a pool that is full of beginnings preempts its way to their ends. `share` 0 leaves one
    block for each running sequence: it would take that back at once. A sequence that is small beside the
    headroom may use half of it, since it soon gives back what it took.
    """

    def __init__(self, share: float = 0.25) -> None:
        self._share = share

    def reserve(self, candidate: Sequence, running: Iterable[Sequence], pool: BlockPool) -> int:
        """Blocks that a candidate must leave to those that run; none where none run."""
        num_running = growth = 0
        for sequence in running:
            num_running += 1
            tokens = max(sequence.expected_work, sequence.num_tokens)
            growth += pool.blocks_for(tokens) - len(sequence.block_table)
        kept = int(self._share * pool.num_blocks)
        if pool.blocks_for(candidate.expected_work) <= _SMALL * kept:
            kept //= 2
        return max(num_running, min(growth, kept))
