"""Where a pool does not fit, every remedy that is named is one with which it does."""

import re
from dataclasses import replace
from itertools import product

import pytest

from appliance.config import MemoryAmount
from appliance.errors import NotEnoughMemory
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.kv_plan import plan_kv
from appliance.runtime.kv_remedies import NarrowerWeights
from kernels.kv_layout import KVLayout, KVOrder, KVType

GIB, MIB = 2**30, 2**20
# An 8B Llama on a card: 32 layers, 8 key heads of 128; a token of 16 bits is 128 KiB, of INT8 66 KiB.
LAYOUT = KVLayout(block_size=16, num_kv_heads=8, head_size=128, dtype=KVType.BF16, order=KVOrder.BKSD)
CARD = KVDemand(
    layout=LAYOUT,
    device_type="cuda",
    num_layers=32,
    context_length=131_072,
    max_sequences=32,
    free_bytes=3 * GIB,
    reserve_bytes=GIB // 2,
)
# Of its matrices in bf16: to 8 bits and to 4.
NARROWER = (NarrowerWeights("int8", 6_900_000_000), NarrowerWeights("int4", 9_600_000_000))


def said(demand: KVDemand, narrower: tuple[NarrowerWeights, ...] = NARROWER) -> str:
    """What is refused, or warned of."""
    try:
        return plan_kv(demand, narrower).warning
    except NotEnoughMemory as error:
        return error.message


def num_bytes(size: str) -> int:
    return MemoryAmount.parse(size).num_bytes or 0


def with_remedies(demand: KVDemand, text: str) -> list[KVDemand]:
    """The demand with each of the remedies in a text, as an operator would read it."""
    changed = [
        replace(demand, wanted_bytes=num_bytes(size), wanted_share=None)
        for size in re.findall(r"(?:raise|lower) --kv-memory to (\w+)", text)
    ]
    if "--kv-dtype int8" in text:
        changed.append(replace(demand, layout=replace(demand.layout, dtype=KVType.INT8)))
    changed += [
        replace(demand, context_length=int(length)) for length in re.findall(r"--context (\d+)", text)
    ]
    freed = [num_bytes(size) for size in re.findall(r"programs that hold (\d+ MiB) or more(?! and)", text)]
    freed += [weights.freed_bytes for weights in NARROWER if f"--precision {weights.precision}" in text]
    changed += [replace(demand, free_bytes=demand.free_bytes + more) for more in freed]
    for more, wish in re.findall(r"programs that hold (\d+ MiB) or more and set --kv-memory to (\w+)", text):
        free_bytes = demand.free_bytes + num_bytes(more)
        wanted = num_bytes(wish)
        changed.append(replace(demand, free_bytes=free_bytes, wanted_bytes=wanted, wanted_share=None))
    return changed


def test_a_context_that_one_sequence_cannot_use_hears_what_would_fit() -> None:
    """2.5 GiB are 20,480 tokens of 16 bits: 39,712 of INT8, and with INT8 weights 72,944 more of 16 bits."""
    text = said(CARD)
    assert text.startswith(
        "the KV pool holds 20480 tokens, and one sequence may have 131072: longer ones are"
    )
    assert "--context 20480 fits one sequence" in text
    assert "--kv-dtype int8" not in text  # 39,712 are too few as well
    assert "--precision int8" not in text
    small = replace(CARD, context_length=32_768)
    assert said(small) == (
        "the KV pool holds 20480 tokens, and one sequence may have 32768: longer ones are refused; "
        "--kv-dtype int8 holds 39712 tokens, or --context 20480 fits one sequence, or "
        "--precision int8 frees 6.4 GiB and leaves a pool of 73120 tokens, or "
        "close programs that hold 1536 MiB or more"
    )
    assert said(replace(CARD, context_length=90_000)).count("--precision int4 frees 8.9 GiB") == 1


def test_where_not_even_a_short_conversation_fits_the_refusal_says_what_would() -> None:
    """256 tokens need 32 MiB, or 16.5 MiB in INT8; 20 MiB are left."""
    text = said(replace(CARD, free_bytes=GIB // 2 + 20 * MIB))
    assert text == (
        "the KV pool needs at least 32.0 MiB and 532.0 MiB free - 512.0 MiB reserve leave 20.0 MiB; "
        "--kv-dtype int8 holds 304 tokens, or --context 160 fits one sequence, or "
        "--precision int8 frees 6.4 GiB and leaves a pool of 52800 tokens, or "
        "close programs that hold 12 MiB or more"
    )


def test_where_nothing_helps_only_more_memory_or_a_smaller_model_is_named() -> None:
    nothing = replace(CARD, free_bytes=GIB // 4)
    assert said(nothing, ()).endswith(
        "leave 0 B; close programs that hold 288 MiB or more, or choose a smaller model"
    )


FREE_MIB = (0, 100, 511, 513, 530, 545, 1000, 2048, 5000, 9000)
CONTEXTS = (20, 255, 1000, 8192, 131_072)
WISHES = ({}, {"wanted_bytes": MIB}, {"wanted_bytes": 2 * GIB}, {"wanted_share": 0.01}, {"wanted_share": 1.0})


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("reserve_bytes", [None, GIB // 2])
@pytest.mark.parametrize("dtype", [KVType.BF16, KVType.INT8])
def test_every_remedy_that_is_named_passes_the_plan(
    device_type: str, reserve_bytes: int | None, dtype: KVType
) -> None:
    layout = replace(LAYOUT, dtype=dtype)
    base = replace(CARD, layout=layout, device_type=device_type, reserve_bytes=reserve_bytes)
    num_tried = 0
    for free_mib, context_length, wish in product(FREE_MIB, CONTEXTS, WISHES):
        free_bytes = free_mib * MIB + 12_345
        demand = replace(base, free_bytes=free_bytes, context_length=context_length, **wish)
        text = said(demand)
        assert bool(text) != demand.holds_a_sequence
        changed = with_remedies(demand, text)
        assert changed or not text
        for other in changed:
            assert plan_kv(other).num_blocks >= other.fewest_blocks, (demand, text)
            assert other.holds_a_sequence or not demand.is_met, (demand, text)
        num_tried += len(changed)
    assert num_tried > 200


def test_the_longest_context_is_named_to_the_last_page() -> None:
    demand = replace(CARD, free_bytes=GIB // 2 + 20 * MIB)
    named = int(re.findall(r"--context (\d+)", said(demand))[0])
    longer = replace(demand, context_length=named + 1)
    assert plan_kv(replace(demand, context_length=named)).num_blocks == named // 16
    with pytest.raises(NotEnoughMemory):
        plan_kv(longer)


def test_how_many_sequences_of_full_length_run_at_once_is_told() -> None:
    explanation = plan_kv(replace(CARD, context_length=4096)).explanation
    assert "32 sequences x 4096 tokens use at most 8192 blocks, 5 of them fit at once" in explanation
    five = replace(CARD, context_length=4096, max_sequences=5)
    assert five.num_blocks == five.useful_blocks
    assert replace(five, max_sequences=6).num_blocks < 6 * five.sequence_blocks
