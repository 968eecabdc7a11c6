"""BlockPool: what is handed out, kept, matched and evicted."""

import random

import pytest

from appliance.engine.block_pool import BlockPool
from appliance.engine.sequence import BlockId


def compute(pool: BlockPool, tokens: list[int], salt: str = "") -> list[BlockId]:
    """Allocate blocks for `tokens` and publish the full ones, as a scheduler would."""
    table = pool.allocate(pool.blocks_for(len(tokens)))
    assert table is not None
    size = pool.block_size
    for index in range(len(tokens) // size):
        parent = table[index - 1] if index else None
        pool.publish(table[index], tokens[index * size : (index + 1) * size], parent=parent, salt=salt)
    return table


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(num_blocks=5, block_size=16)
    table = pool.allocate(3)
    assert table is not None
    assert len(set(table)) == 3
    assert pool.allocate(3) is None
    assert (pool.num_free, pool.num_used, pool.num_cached) == (2, 3, 0)
    assert pool.allocate(0) == []
    pool.check_invariants([table])


def test_freed_blocks_without_content_are_free_again() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    table = pool.allocate(3)
    assert table is not None
    pool.free(table)
    assert pool.num_free == 3
    pool.check_invariants([])


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    table = pool.allocate(1)
    assert table is not None
    pool.free(table)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(table)


def test_a_pool_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        BlockPool(num_blocks=0, block_size=16)


def test_computed_prefix_is_matched_while_used_and_after() -> None:
    pool = BlockPool(num_blocks=8, block_size=4)
    tokens = list(range(11))
    table = compute(pool, tokens)
    shared = pool.match_prefix([*tokens, 99])
    assert shared == table[:2]
    pool.check_invariants([table, shared])
    pool.free(table)
    pool.free(shared)
    assert (pool.num_cached, pool.num_free) == (2, 6)
    assert pool.match_prefix(tokens) == table[:2]
    assert (pool.num_cached, pool.num_used) == (0, 2)


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)]
)
def test_a_match_leaves_at_least_one_token_to_compute(num_tokens: int, num_blocks: int) -> None:
    pool = BlockPool(num_blocks=8, block_size=4)
    compute(pool, list(range(12)))
    assert len(pool.match_prefix(list(range(13))[:num_tokens])) == num_blocks


def test_the_same_block_after_another_start_is_not_matched() -> None:
    pool = BlockPool(num_blocks=8, block_size=2)
    compute(pool, [1, 2, 3, 4])
    assert pool.match_prefix([9, 9, 3, 4, 5]) == []
    assert pool.match_prefix([3, 4, 5]) == []
    assert len(pool.match_prefix([1, 2, 9, 9, 5])) == 1


def test_another_salt_is_not_matched() -> None:
    pool = BlockPool(num_blocks=8, block_size=2)
    table = compute(pool, [1, 2, 3, 4], salt="ward 3")
    assert pool.match_prefix([1, 2, 3]) == []
    assert pool.match_prefix([1, 2, 3], "ward 4") == []
    assert pool.match_prefix([1, 2, 3], "ward 3") == table[:1]


def test_least_recently_used_content_is_evicted_tails_before_heads() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    old = compute(pool, [1, 2, 3, 4])
    pool.free(old)
    new = compute(pool, [5, 6, 7, 8])
    pool.free(new)
    pool.free(pool.match_prefix([1, 2, 3, 4, 0]))  # a use makes the old ones recent
    first, second = pool.allocate(1) or [], pool.allocate(1) or []
    assert first + second == [new[1], new[0]]
    assert pool.match_prefix([5, 6, 0]) == []
    assert pool.match_prefix([1, 2, 3, 4, 0]) == old


def test_free_blocks_are_taken_before_content_is_evicted() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    cached = compute(pool, [1, 2])
    pool.free(cached)
    assert cached[0] not in (pool.allocate(3) or [])
    assert pool.num_cached == 1
    assert pool.allocate(1) == cached


def test_content_computed_twice_is_kept_once() -> None:
    pool = BlockPool(num_blocks=6, block_size=2)
    first, second = compute(pool, [1, 2, 3, 4]), compute(pool, [1, 2, 3, 4])
    pool.free(second)
    assert (pool.num_cached, pool.num_free) == (0, 4)
    pool.free(first)
    assert (pool.num_cached, pool.num_free) == (2, 4)
    pool.check_invariants([])


def test_a_child_of_a_duplicate_is_matched_through_the_original() -> None:
    pool = BlockPool(num_blocks=6, block_size=2)
    first, second = compute(pool, [1, 2]), compute(pool, [1, 2, 3, 4])
    assert pool.match_prefix([1, 2, 3, 4, 5]) == [first[0], second[1]]


def test_forgotten_content_is_not_matched_and_its_chain_still_holds() -> None:
    pool = BlockPool(num_blocks=6, block_size=2)
    table = compute(pool, [1, 2, 3, 4])
    pool.forget(table)
    assert pool.match_prefix([1, 2, 3, 4, 5]) == []
    child = pool.allocate(1) or []
    pool.publish(child[0], [5, 6], parent=table[1])
    pool.check_invariants([table, child])
    pool.free(table)
    assert (pool.num_free, pool.num_cached) == (5, 0)


def test_publishing_out_of_order_or_half_a_block_is_caught() -> None:
    pool = BlockPool(num_blocks=6, block_size=2)
    table = pool.allocate(2) or []
    with pytest.raises(AssertionError, match="must be published before"):
        pool.publish(table[1], [3, 4], parent=table[0])
    with pytest.raises(AssertionError, match="only full blocks"):
        pool.publish(table[0], [1], parent=None)


def test_invariants_notice_a_lost_block() -> None:
    pool = BlockPool(num_blocks=6, block_size=2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="wrong reference count"):
        pool.check_invariants([])


def test_random_traffic_matches_only_what_a_plain_dictionary_knows() -> None:
    rng = random.Random(7)
    pool, tables = BlockPool(num_blocks=23, block_size=3), []
    content: dict[BlockId, tuple[str, tuple[int, ...]]] = {}
    for _ in range(3000):
        salt = rng.choice(["", "a"])
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
        hits = pool.match_prefix(tokens, salt)
        for index, block_id in enumerate(hits):
            assert content[block_id] == (salt, tuple(tokens[: 3 * (index + 1)]))
        fresh = pool.allocate(pool.blocks_for(len(tokens)) - len(hits))
        if fresh is None:
            pool.free(hits)
            pool.free(tables.pop(rng.randrange(len(tables))))
            continue
        table = hits + fresh
        for index in range(len(hits), len(table)):
            content.pop(table[index], None)
            if 3 * (index + 1) <= len(tokens):
                parent = table[index - 1] if index else None
                pool.publish(table[index], tokens[3 * index : 3 * index + 3], parent=parent, salt=salt)
                content[table[index]] = (salt, tuple(tokens[: 3 * (index + 1)]))
        tables.append(table)
        pool.check_invariants(tables)
    for table in tables:
        pool.free(table)
    pool.check_invariants([])
    assert pool.num_used == 0


def test_another_namespace_is_another_key() -> None:
    """Blocks of another model or precision are not found, wherever their content may travel."""
    keys = set()
    for namespace in ("", "model a/int8", "model a/bf16"):
        pool = BlockPool(num_blocks=2, block_size=2, namespace=namespace)
        (block_id,) = compute(pool, [1, 2])
        keys.add(pool._blocks[block_id].key)
    assert len(keys) == 3


def test_a_block_is_writable_for_its_only_holder_until_it_is_published() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    (shared,) = table = pool.allocate(1) or []
    assert pool.is_writable(shared)
    pool.share(table)
    assert not pool.is_writable(shared)
    pool.check_invariants([table, table])
    pool.free(table)
    assert pool.is_writable(shared)
    pool.publish(shared, [1, 2], parent=None)
    assert not pool.is_writable(shared)
    pool.free(table)
    with pytest.raises(AssertionError, match="nobody's to share"):
        pool.share(table)


def test_refusals_and_evictions_are_counted() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    pool.free(compute(pool, [1, 2, 3, 4]))
    assert pool.allocate(0) == []
    assert pool.allocate(5) is None
    assert pool.allocate(3) is not None
    counters = pool.counters
    assert (counters.num_allocations, counters.num_refused_allocations, counters.num_evicted_blocks) == (
        3,
        1,
        1,
    )
