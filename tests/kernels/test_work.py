"""Bytes and operations on paper against tensors that exist, and the document against the functions."""

import re
from dataclasses import fields

import torch

from benchmarks import roofline
from kernels import work
from kernels.int4_weight import quantize_int4
from kernels.int8_weight import pack_int8
from kernels.kv_layout import KVLayout, KVType
from kernels.ops import Ops


def test_a_weights_bytes_are_those_of_its_tensors() -> None:
    rows = torch.ones(96, 128)
    moved = 3 * (128 + 96) * 2
    assert work.linear(3, 128, 96, "int8").num_bytes + 96 * 4 == pack_int8(rows).num_bytes + moved
    assert work.linear(3, 128, 96, "int4").num_bytes == quantize_int4(rows).num_bytes + moved
    assert work.linear(3, 128, 96, "bf16").num_bytes == rows.bfloat16().nbytes + moved


def test_a_contexts_bytes_are_those_of_its_pages() -> None:
    for kv, dtype in (("bf16", torch.bfloat16), ("int8", torch.int8)):
        layout = KVLayout(block_size=16, num_kv_heads=8, head_size=128, dtype=KVType.of(dtype))
        queries = 2 * 32 * 128 * 2
        decode = work.attention_decode(1, 100, 32, 8, 128, kv)
        assert decode.num_bytes == 100 * layout.token_bytes + queries
        assert (
            work.rope_write_kv(1, 32, 8, 128, kv).num_bytes == queries + 2 * 8 * 128 * 2 + layout.token_bytes
        )


def test_a_prompt_in_chunks_costs_the_operations_of_the_whole() -> None:
    whole = work.attention_prefill(100, 100, 4, 2, 64, "bf16").operations
    chunks = [
        work.attention_prefill(40, 40, 4, 2, 64, "bf16"),
        work.attention_prefill(60, 100, 4, 2, 64, "bf16"),
    ]
    assert sum(chunk.operations for chunk in chunks) == whole
    assert whole == sum(4 * (position + 1) * 4 * 64 for position in range(100))


def test_the_document_holds_what_the_functions_say_now() -> None:
    text = roofline.DOCUMENT.read_text("utf-8")
    assert roofline.BEGIN + roofline.report() + roofline.END in text
    assert "predictions" in text.split(roofline.BEGIN)[0].rsplit("##", 1)[1]


def test_every_operation_has_its_line_in_the_table() -> None:
    named = " ".join(name for name, _ in roofline.kernel_rows())
    assert {field.name for field in fields(Ops)} <= set(re.findall(r"\w+", named))
