"""When the KV cache becomes INT8 by itself, and when it does not."""

import logging
from dataclasses import replace

import pytest

from appliance.errors import NotEnoughMemory
from appliance.runtime.cpu import cpu_block_size
from appliance.runtime.kv_plan import KVPlan
from appliance.runtime.kv_policy import KVChoice, choose_kv, wanted_tokens
from kernels.kv_layout import KVLayout, KVType

LAYOUT = KVLayout(block_size=32, num_kv_heads=2, head_size=64, dtype=KVType.BF16)


def choose(
    budget_bytes: int, *, num_wanted: int, is_open: bool = True, small: KVLayout | None = None
) -> KVChoice:
    def plan(layout: KVLayout) -> KVPlan:
        block_bytes = layout.block_size * layout.token_bytes
        if budget_bytes < block_bytes:
            raise NotEnoughMemory("too little")
        return KVPlan(num_blocks=budget_bytes // block_bytes, block_bytes=block_bytes, explanation="")

    return choose_kv(LAYOUT, "bf16", plan, small=small, num_wanted_tokens=num_wanted, is_open=is_open)


def test_sixteen_bits_stay_while_the_pool_holds_what_is_wanted() -> None:
    choice = choose(1000 * LAYOUT.token_bytes, num_wanted=992)
    assert (choice.dtype_name, choice.layout) == ("bf16", LAYOUT)
    assert choice.plan.num_blocks == 31


def test_a_pool_too_small_becomes_int8_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    choice = choose(1000 * LAYOUT.token_bytes, num_wanted=993)
    assert (choice.dtype_name, choice.layout.dtype) == ("int8", KVType.INT8)
    assert choice.plan.num_blocks * 32 > 1.85 * 992
    assert "bf16 would hold 992 tokens of the 993 wanted at once" in caplog.text


def test_int8_has_pages_of_its_own_length() -> None:
    small = replace(LAYOUT, block_size=64, dtype=KVType.INT8)
    assert choose(1000 * LAYOUT.token_bytes, num_wanted=993, small=small).layout == small


def test_a_stated_precision_is_kept() -> None:
    assert choose(1000 * LAYOUT.token_bytes, num_wanted=10_000, is_open=False).dtype_name == "bf16"


def test_int8_is_tried_before_a_model_is_refused() -> None:
    budget = 20 * LAYOUT.token_bytes
    assert choose(budget, num_wanted=1000).dtype_name == "int8"
    for refused in ({"is_open": False}, {"budget_bytes": 100}):
        with pytest.raises(NotEnoughMemory):
            choose(**({"budget_bytes": budget, "num_wanted": 1000} | refused))


@pytest.mark.parametrize(
    ("context", "sequences", "is_asked", "expected"),
    [
        (2048, 1, False, 2048),
        (512, 8, False, 8 * 512),
        (8192, 32, False, 8192 + 31 * 1024),
        (131_072, 4, False, 8192 + 3 * 1024),
        (131_072, 4, True, 131_072 + 3 * 1024),
    ],
)
def test_one_long_sequence_and_others_of_usual_length_are_wanted(
    context: int, sequences: int, is_asked: bool, expected: int
) -> None:
    assert wanted_tokens(context, sequences, is_context_asked=is_asked) == expected


@pytest.mark.parametrize(("head_size", "block_size"), [(16, 32), (64, 32), (80, 64), (128, 64), (256, 64)])
def test_wide_heads_have_longer_pages(head_size: int, block_size: int) -> None:
    assert cpu_block_size(head_size, KVType.BF16) == block_size


@pytest.mark.parametrize("head_size", [16, 64, 80, 128, 256])
def test_int8_pages_are_long(head_size: int) -> None:
    assert cpu_block_size(head_size, KVType.INT8) == 64
