"""Gives sequences their blocks, from prefixes known and shared first. Knows no order and no step.

A sequence may hold blocks together with others: those matched by content, which are full and only read,
and those of the sequence it is a fork of, whose last one may be partly filled. Whoever is to write into a
shared block first gets a copy of it: `grow` sets a spare block aside, `own_next_block` puts it in place.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from appliance.engine.batch import BlockCopy
from appliance.engine.block_pool import BlockPool
from appliance.engine.sequence import BlockId, Sequence, SequenceStatus
from appliance.engine.swap_space import SwapSpace


class BlockTables:
    """The one who changes `block_table`, `spare_block` and `num_computed_tokens` of sequences."""

    def __init__(self, pool: BlockPool, swap: SwapSpace, *, enable_prefix_cache: bool = True) -> None:
        self._pool = pool
        self._swap = swap
        self._enable_prefix_cache = enable_prefix_cache

    def claim(self, sequence: Sequence, *, num_left_over: int) -> bool:
        """Fill an empty table for all known tokens, or change nothing.

        `num_left_over` blocks stay available: running sequences will soon need one each.
        """
        assert not sequence.block_table
        shared, sequence.num_computed_tokens = self._shared_prefix(sequence)
        sequence.block_table = tuple(shared)
        missing = self._num_missing(sequence)
        if missing + num_left_over <= self._pool.num_available and self.grow(sequence):
            self._restore(sequence)
            return True
        self.release(sequence)
        return False

    def lacking(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Those that `grow` has something to do for. The rest, in most steps all, cost a comparison each."""
        size, is_writable = self._pool.block_size, self._pool.is_writable
        return [
            s
            for s in sequences
            if len(s.token_ids) > len(s.block_table) * size
            or (not is_writable(s.block_table[s.num_computed_tokens // size]) and s.spare_block is None)
        ]

    def grow(self, sequence: Sequence) -> bool:
        """Add blocks for all known tokens, and the spare if the next is shared; or change nothing."""
        num_missing = self._num_missing(sequence)
        if not num_missing:
            return True
        blocks = self._pool.allocate(num_missing)
        if blocks is None:
            return False
        if self._needs_spare(sequence):
            sequence.spare_block = blocks.pop()
        sequence.block_table += tuple(blocks)
        return True

    def grow_ahead(self, sequence: Sequence, position: int) -> bool:
        """Have a block that is this sequence's own for a token to come; False where that takes a copy or more
        blocks than there are."""
        index = position // self._pool.block_size
        if index < len(sequence.block_table):
            return self._pool.is_writable(sequence.block_table[index])
        blocks = self._pool.allocate(1) if self._pool.num_available else None
        if blocks is None:
            return False
        sequence.block_table += tuple(blocks)
        return True

    def own_next_block(self, sequence: Sequence) -> BlockCopy | None:
        """Put the spare in place of the shared block that is written next; return the copy to do."""
        target, sequence.spare_block = sequence.spare_block, None
        if target is None:
            return None
        index = self._next_index(sequence)
        source = sequence.block_table[index]
        if self._pool.is_writable(source):  # the others are gone since
            self._pool.free([target])
            return None
        table = sequence.block_table
        sequence.block_table = (*table[:index], target, *table[index + 1 :])
        self._pool.free([source])  # its content outlives this until the step computes, and copies come first
        return BlockCopy(source=source, target=target)

    def advance(self, sequence: Sequence, num_new: int) -> None:
        """Count tokens as computed and publish the blocks that they filled."""
        size = self._pool.block_size
        first = sequence.num_computed_tokens // size
        sequence.num_computed_tokens += num_new
        if self._enable_prefix_cache and first < sequence.num_computed_tokens // size:
            self._publish(sequence, first)

    def publish_restored(self, sequence: Sequence) -> None:
        """Publish what came back from host memory, now that it is there."""
        if self._enable_prefix_cache:
            self._publish(sequence, 0)

    def forget(self, sequence: Sequence) -> None:
        """Let nobody match this sequence's blocks any more: their content is in doubt."""
        self._pool.forget(sequence.block_table)

    def release(self, sequence: Sequence) -> None:
        """Give everything back; nothing counts as computed."""
        self._pool.free(held_blocks(sequence))
        sequence.block_table, sequence.spare_block = (), None
        sequence.num_computed_tokens = 0

    def _publish(self, sequence: Sequence, first: int) -> None:
        size = self._pool.block_size
        for index in range(first, sequence.num_computed_tokens // size):
            parent = sequence.block_table[index - 1] if index else None
            tokens = sequence.token_ids[index * size : (index + 1) * size]
            self._pool.publish(sequence.block_table[index], tokens, parent=parent, salt=sequence.cache_salt)

    def _restore(self, sequence: Sequence) -> None:
        """Fill what was not found in the pool from host memory, if it is kept there."""
        num_saved = self._swap.num_saved_tokens(sequence)
        if num_saved <= sequence.num_computed_tokens:
            self._swap.forget(sequence)
            return
        first = sequence.num_computed_tokens // self._pool.block_size
        sequence.num_computed_tokens = self._swap.restore(sequence, first)

    def _shared_prefix(self, sequence: Sequence) -> tuple[SequenceOf[BlockId], int]:
        """Return blocks, with a reference each, and how many tokens they hold computed for this one."""
        if sequence.params.reads_prompt:
            return [], 0
        matched: list[BlockId] = []
        if self._enable_prefix_cache:
            matched = self._pool.match_prefix(sequence.token_ids, sequence.cache_salt)
        num_matched = len(matched) * self._pool.block_size
        leader, num_prompt = sequence.fork_of, sequence.num_prompt_tokens
        if leader is None or not has_computed_prompt(leader) or num_matched >= num_prompt - 1:
            return matched, num_matched
        if self._swap.num_saved_tokens(sequence):
            return matched, num_matched
        self._pool.free(matched)
        forked = leader.block_table[: self._pool.blocks_for(num_prompt)]
        self._pool.share(forked)
        return forked, num_prompt - 1  # the last one is computed again: its output chooses the first token

    def _num_missing(self, sequence: Sequence) -> int:
        num_wanted = self._pool.blocks_for(len(sequence.token_ids)) + self._needs_spare(sequence)
        return max(0, num_wanted - len(sequence.block_table))

    def _needs_spare(self, sequence: Sequence) -> bool:
        index = sequence.num_computed_tokens // self._pool.block_size
        if sequence.spare_block is not None or index >= len(sequence.block_table):
            return False
        return not self._pool.is_writable(sequence.block_table[index])

    def _next_index(self, sequence: Sequence) -> int:
        return sequence.num_computed_tokens // self._pool.block_size


def held_blocks(sequence: Sequence) -> tuple[BlockId, ...]:
    """Every block that a sequence has a reference of."""
    if sequence.spare_block is None:
        return sequence.block_table
    return (*sequence.block_table, sequence.spare_block)


def has_computed_prompt(sequence: Sequence) -> bool:
    is_running = sequence.status is SequenceStatus.RUNNING
    return is_running and sequence.num_computed_tokens >= sequence.num_prompt_tokens
