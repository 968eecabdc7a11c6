"""Hands out KV blocks and remembers what computed ones hold. Knows tokens and counts; knows no sequences.

Every block is in exactly one of three states: used (referenced by block tables), cached (unreferenced,
but its content can be matched) or free. Content is known by a chained hash: a block's key covers every
token from the start of the sequence to the block's end, the salt, and the pool's namespace.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from hashlib import blake2b

from appliance.engine.sequence import BlockId

# 32 bytes make a collision as unlikely as for SHA-256, so equal keys need no comparison of tokens.
_KEY_BYTES = 32


@dataclass(slots=True)
class Block:
    """One page: how many block tables hold it, and the key of its content once computed."""

    num_references: int = 0
    key: bytes | None = None


@dataclass(slots=True)
class PoolCounters:
    """What the pool has done since the start."""

    num_allocations: int = 0  # that asked for at least one block
    num_refused_allocations: int = 0  # of those; the asker preempted somebody, or waited
    num_evicted_blocks: int = 0  # cached content that made room


class BlockPool:
    """`num_blocks` pages of `block_size` tokens. Every operation is O(1) amortised per block.

    `namespace` says whose content this is (model, precision): keys of two namespaces never meet. `is_dear`
    tells which free blocks are taken only when nothing cached can make room; None: no block is.
    """

    def __init__(self, num_blocks: int, block_size: int, *, namespace: str = "") -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counters = PoolCounters()
        self.is_dear: Callable[[BlockId], bool] | None = None
        self._namespace_key = _root_key(namespace)
        self._blocks = [Block() for _ in range(num_blocks)]
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._cached: OrderedDict[BlockId, None] = OrderedDict()  # least recently used first
        self._holders: dict[bytes, BlockId] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones, then cached ones by eviction."""
        return len(self._free) + len(self._cached)

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[BlockId] | None:
        """Give `num_blocks` blocks with one reference each, or None and nothing changes."""
        self.counters.num_allocations += num_blocks > 0
        if num_blocks > self.num_available:
            self.counters.num_refused_allocations += 1
            return None
        return [self._take() for _ in range(num_blocks)]

    def share(self, block_table: SequenceOf[BlockId]) -> None:
        """Add a reference to each of these referenced blocks."""
        for block_id in block_table:
            assert self._blocks[block_id].num_references > 0, f"block {block_id} is nobody's to share"
            self._reference(block_id)

    def is_writable(self, block_id: BlockId) -> bool:
        """Whether its only holder may change it: nobody shares it and nobody can match it."""
        block = self._blocks[block_id]
        return block.num_references == 1 and block.key is None

    def free(self, block_table: SequenceOf[BlockId]) -> None:
        """Drop one reference of each block. The last block goes first, so that tails are evicted first."""
        for block_id in reversed(block_table):
            block = self._blocks[block_id]
            assert block.num_references > 0, f"block {block_id} was freed twice"
            block.num_references -= 1
            if block.num_references == 0:
                self._release(block_id, block)

    def match_prefix(self, token_ids: SequenceOf[int], salt: str = "") -> list[BlockId]:
        """Return, with a reference each, the blocks that hold the longest known prefix of `token_ids`.

        Never all of it: at least one token is left to compute, since sampling needs its output.
        """
        matched: list[BlockId] = []
        key = self._salted_key(salt)
        size = self.block_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            key = _chained_key(key, token_ids[start : start + size])
            block_id = self._holders.get(key)
            if block_id is None:
                break
            matched.append(block_id)
        for block_id in matched:
            self._reference(block_id)
        return matched

    def publish(
        self, block_id: BlockId, token_ids: SequenceOf[int], *, parent: BlockId | None, salt: str = ""
    ) -> None:
        """Make a full, computed block matchable. `parent` is the published block before it, if any."""
        assert len(token_ids) == self.block_size, "only full blocks are published"
        parent_key = self._salted_key(salt) if parent is None else self._blocks[parent].key
        assert parent_key is not None, f"block {parent} must be published before block {block_id}"
        block = self._blocks[block_id]
        assert block.num_references > 0, f"block {block_id} is published but nobody holds it"
        block.key = _chained_key(parent_key, token_ids)
        self._holders.setdefault(block.key, block_id)

    def forget(self, block_table: SequenceOf[BlockId]) -> None:
        """Let nobody match these referenced blocks any more: their content is in doubt.

        They keep their keys, because blocks that other sequences publish later are chained to them.
        """
        for block_id in block_table:
            key = self._blocks[block_id].key
            if key is not None and self._holders.get(key) == block_id:
                del self._holders[key]

    def check_invariants(self, block_tables: Iterable[SequenceOf[BlockId]]) -> None:
        """Assert that the states partition the blocks and that references equal those of `block_tables`."""
        references = Counter(block_id for table in block_tables for block_id in table)
        unreferenced = set(self._free) | set(self._cached)
        assert len(unreferenced) == self.num_available, "a block is twice among the free and cached"
        for index, block in enumerate(self._blocks):
            block_id = BlockId(index)
            assert block.num_references == references[block_id], f"block {block_id}: wrong reference count"
            assert (block_id in unreferenced) == (block.num_references == 0), f"block {block_id}: wrong state"
        assert all(self._blocks[b].key is None for b in self._free), "a free block still has content"
        for block_id in self._cached:
            assert self._holders.get(self._blocks[block_id].key or b"") == block_id, "a cached block is lost"
        assert all(self._blocks[b].key == key for key, b in self._holders.items()), "a key is stale"

    def _salted_key(self, salt: str) -> bytes:
        return _root_key(salt, self._namespace_key)

    def _take(self) -> BlockId:
        block_id = self._free.pop() if self._has_cheap_one() else self._evict()
        self._blocks[block_id].num_references = 1
        return block_id

    def _has_cheap_one(self) -> bool:
        """Whether a free block is to be taken, not a cached one."""
        if not self._free or not self._cached or self.is_dear is None:
            return bool(self._free)
        return not self.is_dear(self._free[-1])

    def _evict(self) -> BlockId:
        block_id, _ = self._cached.popitem(last=False)
        self.counters.num_evicted_blocks += 1
        block = self._blocks[block_id]
        assert block.key is not None
        del self._holders[block.key]
        block.key = None
        return block_id

    def _reference(self, block_id: BlockId) -> None:
        block = self._blocks[block_id]
        if block.num_references == 0:
            del self._cached[block_id]
        block.num_references += 1

    def _release(self, block_id: BlockId, block: Block) -> None:
        # Two sequences may compute the same content at once; one block stands for it, the other is freed.
        if block.key is not None and self._holders.get(block.key) == block_id:
            self._cached[block_id] = None
            return
        block.key = None
        self._free.append(block_id)


def _root_key(salt: str, namespace_key: bytes = b"") -> bytes:
    # `person` keeps the two kinds of key apart: no salt can be made to equal a chain.
    return blake2b(salt.encode(), key=namespace_key, digest_size=_KEY_BYTES, person=b"salt").digest()


def _chained_key(parent_key: bytes, token_ids: SequenceOf[int]) -> bytes:
    content = parent_key + array("q", token_ids).tobytes()
    return blake2b(content, digest_size=_KEY_BYTES, person=b"block").digest()
