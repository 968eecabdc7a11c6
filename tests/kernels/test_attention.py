"""Paged attention against a loop over positions in float64: every layout, ragged batches, chunks."""

import numpy as np
import pytest
import torch

from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import AttentionParams, Ops
from oracles.kernel_formulas import attend_one
from oracles.pages import poisoned_layer, ragged_queries, read_context, slots_of
from oracles.tolerances import assert_close

# (new tokens, context length, new ones included): a whole prompt, a single next token, a chunk, a lone token.
RAGGED = ((7, 7), (1, 40), (13, 29), (1, 1))


class Scene:
    """Sequences of random keys and values, written through the op under test, in shuffled blocks."""

    def __init__(
        self,
        ops: Ops,
        layout: KVLayout,
        shares: tuple[tuple[int, int], ...],
        *,
        num_heads: int,
        seed: int = 0,
        query_dtype: torch.dtype = torch.float32,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.ops, self.layout, self.num_heads = ops, layout, num_heads
        self.num_new = [new for new, _ in shares]
        self.context_lens = [context for _, context in shares]
        needed = [-(-context // layout.block_size) for context in self.context_lens]
        # Block 0 belongs to nobody: tables are padded with it, and it stays poisoned.
        ids = (1 + rng.permutation(sum(needed))).tolist()
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        self.layer: LayerKV = poisoned_layer(layout, sum(needed) + 1)
        for table, context in zip(self.tables, self.context_lens, strict=True):
            shape = (context, layout.num_kv_heads, layout.head_size)
            key, value = (torch.from_numpy(rng.standard_normal(shape)).float() for _ in range(2))
            slots = slots_of(table, range(context), layout.block_size)
            ops.write_kv(key, value, torch.tensor(slots), self.layer)
        query_shape = (sum(self.num_new), num_heads, layout.head_size)
        self.query = torch.from_numpy(rng.standard_normal(query_shape)).to(query_dtype)

    def run(self, params: AttentionParams) -> torch.Tensor:
        ragged = ragged_queries(self.num_new, self.context_lens, self.tables)
        return self.ops.attention(self.query, self.layer, ragged, params)

    def expected(self, params: AttentionParams) -> np.ndarray:
        group = self.num_heads // self.layout.num_kv_heads
        rows = []
        queries = iter(self.query.double().numpy())
        for new, context, table in zip(self.num_new, self.context_lens, self.tables, strict=True):
            slots = slots_of(table, range(context), self.layout.block_size)
            keys, values = read_context(self.layer, slots)
            for position in range(context - new, context):
                query = next(queries)
                rows.append(
                    [
                        attend_one(
                            query[n],
                            keys[:, n // group],
                            values[:, n // group],
                            position,
                            scale=params.scale,
                            window=params.window,
                            softcap=params.softcap,
                        )
                        for n in range(self.num_heads)
                    ]
                )
        return np.array(rows)


def make_layout(
    *,
    dtype: torch.dtype = torch.float32,
    order: KVOrder = KVOrder.BSKD,
    block_size: int = 16,
    num_kv_heads: int = 2,
    head_size: int = 8,
) -> KVLayout:
    return KVLayout(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=KVType.of(dtype),
        order=order,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("order", KVOrder)
@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
def test_every_layout_gives_the_formulas_result(
    ops: Ops, dtype: torch.dtype, order: KVOrder, block_size: int
) -> None:
    layout = make_layout(dtype=dtype, order=order, block_size=block_size)
    scene = Scene(ops, layout, RAGGED, num_heads=4)
    params = AttentionParams(scale=0.35)
    assert_close(scene.run(params), scene.expected(params))


@pytest.mark.parametrize("group", range(1, 9))
def test_query_heads_read_the_kv_head_of_their_group(ops: Ops, group: int) -> None:
    scene = Scene(ops, make_layout(num_kv_heads=3), ((7, 9), (1, 20)), num_heads=3 * group)
    params = AttentionParams(scale=8**-0.5)
    assert_close(scene.run(params), scene.expected(params))


@pytest.mark.parametrize("window", [1, 2, 7, 16, 28, 1000])
def test_a_window_hides_what_lies_before_it(ops: Ops, window: int) -> None:
    scene = Scene(ops, make_layout(block_size=7), RAGGED, num_heads=2)
    params = AttentionParams(scale=0.5, window=window)
    assert_close(scene.run(params), scene.expected(params))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("window", [None, 5])
def test_scores_are_capped_before_the_softmax(ops: Ops, softcap: float, window: int | None) -> None:
    scene = Scene(ops, make_layout(), RAGGED, num_heads=4)
    params = AttentionParams(scale=3.0, softcap=softcap, window=window)
    assert_close(scene.run(params), scene.expected(params))


@pytest.mark.parametrize("head_size", [1, 7, 63, 100])
def test_odd_head_sizes_work(ops: Ops, head_size: int) -> None:
    scene = Scene(ops, make_layout(head_size=head_size, num_kv_heads=1), ((3, 5), (1, 17)), num_heads=1)
    params = AttentionParams(scale=head_size**-0.5)
    assert_close(scene.run(params), scene.expected(params))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_result_has_the_querys_type_and_its_precision_only_at_the_end(
    ops: Ops, dtype: torch.dtype
) -> None:
    scene = Scene(ops, make_layout(dtype=dtype), RAGGED, num_heads=4, query_dtype=dtype)
    params = AttentionParams(scale=0.35)
    found = scene.run(params)
    assert found.dtype == dtype
    assert_close(found, scene.expected(params))


def test_large_scores_do_not_overflow(ops: Ops) -> None:
    scene = Scene(ops, make_layout(), RAGGED, num_heads=2)
    params = AttentionParams(scale=1e4)
    # At this scale a score's own float32 rounding is near 1e-2: only the winners can be compared.
    found, expected = scene.run(params), scene.expected(params)
    assert torch.isfinite(found).all()
    close = np.abs(found.double().numpy() - expected).max(axis=-1) < 1e-3
    assert close.mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("chunks", [(1,) * 40, (7, 33), (16, 16, 8), (39, 1)])
def test_a_prompt_in_chunks_gives_what_it_gives_whole(
    ops: Ops, chunks: tuple[int, ...], window: int | None, dtype: torch.dtype
) -> None:
    params = AttentionParams(scale=0.35, window=window)
    whole = Scene(ops, make_layout(dtype=dtype), ((40, 40),), num_heads=4)
    expected = whole.run(params)
    done, rows = 0, []
    for chunk in chunks:
        done += chunk
        ragged = ragged_queries([chunk], [done], whole.tables)
        rows.append(ops.attention(whole.query[done - chunk : done], whole.layer, ragged, params))
    assert_close(torch.cat(rows), expected.double().numpy())


def test_a_sequence_gets_the_same_alone_and_among_others(ops: Ops) -> None:
    scene = Scene(ops, make_layout(), RAGGED, num_heads=4)
    params = AttentionParams(scale=0.35)
    together = scene.run(params)
    start = 0
    for new, context, table in zip(scene.num_new, scene.context_lens, scene.tables, strict=True):
        ragged = ragged_queries([new], [context], [table])
        alone = ops.attention(scene.query[start : start + new], scene.layer, ragged, params)
        assert torch.equal(alone, together[start : start + new])
        start += new


def test_later_tokens_are_never_seen(ops: Ops) -> None:
    scene = Scene(ops, make_layout(), ((7, 7),), num_heads=2)
    params = AttentionParams(scale=0.35)
    before = scene.run(params)
    last = slots_of(scene.tables[0], range(6, 7), 16)
    loud = torch.full((1, 2, 8), 100.0)
    ops.write_kv(loud, loud, torch.tensor(last), scene.layer)
    after = scene.run(params)
    assert torch.equal(before[:6], after[:6])
    assert not torch.equal(before[6], after[6])
