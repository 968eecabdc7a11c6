"""Every kernel in every form that ships: one recorded launch each, for who compiles them without a GPU.

A form is what Triton compiles anew for: element types, flags, sizes known at compile time. Tensors here are
shapes without memory; sizes are those of common models, so that divisibility is what it will be.
"""

from collections.abc import Iterator
from itertools import product

import torch

from kernels.gpu_launch import KernelCall, recorded_calls
from kernels.int4_weight import Int4Weight
from kernels.int8_weight import Int8Weight
from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import MOST_SKINNY_TOKENS, AttentionParams, Ops, RaggedQueries
from kernels.tables import gpu_ops

BF16, F16, INT8 = torch.bfloat16, torch.float16, torch.int8
# Head size, page size, window, soft-cap: what a family of models brings together.
_ATTENTION_FORMS = (
    (64, 16, None, None),
    (80, 32, 512, None),
    (96, 64, None, None),
    (128, 16, None, None),
    (256, 32, 4096, 50.0),
)


def shipped_calls() -> list[KernelCall]:
    """Return one launch per form of every kernel in gpu_ops()."""
    ops = gpu_ops()
    with recorded_calls() as calls:
        for record in (_record_rows, _record_products, _record_pages, _record_attention):
            record(ops)
    return list(calls)


def _meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _record_rows(ops: Ops) -> None:
    for dtype in (BF16, F16):
        ops.rms_norm(_meta(64, 32, 128, dtype=dtype), _meta(128, dtype=torch.float32), 1e-5)
        for hidden in (576, 4096, 16384):
            x, weight = _meta(64, hidden, dtype=dtype), _meta(hidden, dtype=torch.float32)
            ops.add_rms_norm(x, x.float(), weight, 1e-5)
        ops.gated_silu(_meta(64, 28672, dtype=dtype))
        ops.gated_gelu(_meta(64, 28672, dtype=dtype))
        ops.select_rows(_meta(64, 4096, dtype=dtype), _meta(8, dtype=torch.int64))
        for scale in (None, 0.1):
            ops.quantize_tokens(_meta(512, 4096, dtype=dtype), scale)
    ops.rms_norm(_meta(64, 4096, dtype=torch.float32), _meta(4096, dtype=torch.float32), 1e-5)


def _record_products(ops: Ops) -> None:
    for dtype, has_bias, num_tokens in (
        *product((BF16, F16), (False,), (1, 17, 512)),
        (BF16, True, 512),
    ):
        x = _meta(num_tokens, 4096, dtype=dtype)
        bias = _meta(4096, dtype=dtype) if has_bias else None
        int8 = Int8Weight(
            weight=_meta(4096, 4096, dtype=INT8),
            scales=_meta(4096, dtype=torch.float32),
            bias=bias,
            activation_dtype=dtype,
        )
        ops.linear_int8(x, int8)
        if num_tokens > MOST_SKINNY_TOKENS:
            ops.linear_int8_tokens(x.to(INT8), _meta(num_tokens, dtype=torch.float32), int8)
        for has_minima in (True,) if has_bias or dtype is F16 else (False, True):
            int4 = Int4Weight(
                packed=_meta(64, 4096, 32, dtype=torch.uint8),
                scales=_meta(128, 4096, dtype=F16),
                minima=_meta(128, 4096, dtype=F16) if has_minima else None,
                num_inputs=4096,
                bias=bias,
                activation_dtype=dtype,
            )
            ops.linear_int4(x, int4)


def _record_pages(ops: Ops) -> None:
    for dtype, layer in _layers(head_size=128, block_size=16):
        for num_tokens in (8, 512):
            query, key, value = torch.split(_meta(num_tokens, 48, 128, dtype=dtype), [32, 8, 8], dim=1)
            table = _meta(num_tokens, 64, dtype=torch.float32)
            slots = _meta(num_tokens, dtype=torch.int64)
            ops.rope_write_kv(query, key, value, table, table, slots, layer)
        if dtype is BF16:
            ops.write_kv(key, value, slots, layer)
        ops.copy_blocks(_meta(4, dtype=torch.int64), _meta(4, dtype=torch.int64), layer)
    table = _meta(8, 64, dtype=torch.float32)
    ops.rope(_meta(8, 32, 128), table, table)


def _record_attention(ops: Ops) -> None:
    for head_size, block_size, window, softcap in _ATTENTION_FORMS:
        params = AttentionParams(scale=0.1, window=window, softcap=softcap)
        for dtype, layer in _layers(head_size=head_size, block_size=block_size):
            if dtype is F16 and head_size != 128:
                continue
            # Contexts split, contexts whole, a prompt.
            for num_new in ((1,), (1,) * 64, (100,)):
                if len(num_new) > 1 and head_size != 128:
                    continue
                query = _meta(sum(num_new), 32, head_size, dtype=dtype)
                ops.attention(query, layer, _ragged(num_new), params)


def _layers(head_size: int, block_size: int) -> Iterator[tuple[torch.dtype, LayerKV]]:
    for dtype, is_int8 in product((BF16, F16), (False, True)):
        layout = KVLayout(
            block_size=block_size,
            num_kv_heads=8,
            head_size=head_size,
            dtype=KVType.of(INT8 if is_int8 else dtype),
            order=KVOrder.BKSD,
        )
        pages, scales = _meta(*layout.shape(64), dtype=layout.dtype.in_torch()), None
        if is_int8:
            scales = _meta(*layout.shape(64)[:3], dtype=torch.float32)
        yield dtype, LayerKV(layout=layout, keys=pages, values=pages, key_scales=scales, value_scales=scales)


def _ragged(num_new: tuple[int, ...]) -> RaggedQueries:
    starts = tuple(sum(num_new[:s]) for s in range(len(num_new) + 1))
    return RaggedQueries(
        query_starts=_meta(len(starts), dtype=torch.int32),
        context_lens=_meta(len(num_new), dtype=torch.int32),
        block_tables=_meta(len(num_new), 64, dtype=torch.int32),
        host_query_starts=starts,
        host_context_lens=(100,) * len(num_new),
    )
