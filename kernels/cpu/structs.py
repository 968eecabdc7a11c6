"""Arrays and tensors as the library's structs, each checked for what the library will read it as."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.abi import Kind, KVLayerStruct, MatrixStruct, Source, StepStruct
from kernels.cpu.library import NativeError, NativeUnsupported
from kernels.cpu.pages import NativePages
from kernels.kv_layout import KVOrder, KVType

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
AnyArray = NDArray[np.generic]

_EXACT_KIND = {
    Source.F32: Kind.CHANNEL8, Source.F16: Kind.CHANNEL8, Source.BF16: Kind.CHANNEL8,
    Source.Q4_0: Kind.GROUP4, Source.Q4_1: Kind.GROUP4_MIN, Source.Q8_0: Kind.GROUP8,
    Source.AFFINE: Kind.AFFINE8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeBatch:
    """One step's work: T tokens of S sequences, R rows whose logits are wanted. All int32, contiguous."""

    tokens: Int32Array  # [T]
    positions: Int32Array  # [T]
    slots: Int32Array  # [T], where each token's keys and values go
    query_starts: Int32Array  # [S + 1], from 0 to T
    context_lens: Int32Array  # [S], new tokens included
    prompt_lens: Int32Array  # [S], tokens at positions below are of a prompt: in bf16 on levels with tiles
    block_tables: Int32Array  # [S, max_blocks]; what lies past the context is not read
    logit_rows: Int32Array  # [R], indices into the tokens


@dataclass(slots=True, kw_only=True)  # not frozen for speed: one a row and step
class RowChoice:
    """How one row's token is chosen: the likeliest at temperature 0, else drawn after top-k, top-p, min-p.

    `mask` has a bit for each allowed token, the first in the lowest; `number`, from [0, 1), says where in the
    running total of the weights, in the tokens' order, the draw falls.
    """

    logits: Float32Array  # [size]
    mask: NDArray[np.uint32] | None = None
    temperature: float = 0.0
    top_k: int = 0  # none
    top_p: float = 1.0
    min_p: float = 0.0
    number: float = 0.0


_CHOICE = np.dtype(
    [
        ("logits", np.uintp), ("mask", np.uintp), ("number", np.float64), ("top_p", np.float64),
        ("min_p", np.float64), ("temperature", np.float32), ("top_k", np.int32), ("size", np.int32),
        ("num_mask_words", np.int32),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopTokens:
    """Each logit row's best tokens, best first, equal ones by lowest id; -1 where there are no numbers."""

    ids: Int32Array  # [R, top_k]
    values: Float32Array  # [R, top_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixExtras:
    """What may come with a matrix's rows; see NativeModelBuilder.set_linear."""

    scales: Float32Array | None = None
    minima: Float32Array | None = None
    order: Int32Array | None = None
    bias: Float32Array | None = None


@dataclass(frozen=True, slots=True)
class SomeLayers:
    """Layers `first` to `end` of a step; what goes from one call to the next stays in `between`."""

    first: int
    end: int
    between: Float32Array  # [T, hidden_size]


class KeptArrays(list[AnyArray]):
    """Arrays that must outlive a call, and their addresses."""

    def pointer(self, array: AnyArray | None) -> int | None:
        if array is None:
            return None
        self.append(array)
        return int(array.ctypes.data)


def matrix_struct(
    keep: KeptArrays,
    rows: AnyArray,
    source: Source,
    kind: Kind | None,
    extras: MatrixExtras,
) -> MatrixStruct:
    """A matrix for the library; the arrays it points to are put into `keep`. Raises NativeError."""
    if rows.ndim < 2 or not rows.flags.c_contiguous or not rows.shape[0]:
        raise NativeError(f"rows of shape {rows.shape} are not a contiguous matrix")
    num_outputs = rows.shape[0]
    elements, block_bytes = source.block
    row_bytes = rows.nbytes // num_outputs
    if row_bytes % block_bytes:
        raise NativeError(f"a row of {row_bytes} bytes is not made of {source.name} blocks of {block_bytes}")
    num_inputs = row_bytes // block_bytes * elements
    grouped = (num_outputs, num_inputs // 32)
    return MatrixStruct(
        source=source,
        kind=_EXACT_KIND[source] if kind is None else kind,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        rows=keep.pointer(rows),
        rows_bytes=rows.nbytes,
        scales=keep.pointer(shaped("scales", extras.scales, np.float32, grouped)),
        minima=keep.pointer(shaped("minima", extras.minima, np.float32, grouped)),
        order=keep.pointer(shaped("order", extras.order, np.int32, (num_outputs,))),
        bias=keep.pointer(shaped("bias", extras.bias, np.float32, (num_outputs,))),
    )


def shaped(name: str, array: AnyArray | None, dtype: type, shape: tuple[int, ...]) -> AnyArray | None:
    """The array, if it is what the library will read it as. Raises NativeError."""
    if array is None:
        return None
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        wanted = f"{np.dtype(dtype).name} {list(shape)}"
        raise NativeError(f"{name} is {array.dtype} {list(array.shape)}; it must be contiguous {wanted}")
    return array


def choice_structs(choices: Sequence[RowChoice]) -> AnyArray:
    """The choices for the library; their arrays must outlive the call. Raises NativeError."""
    return np.array([_choice_fields(choice) for choice in choices], _CHOICE)


def _choice_fields(choice: RowChoice) -> tuple[float, ...]:
    logits, mask = choice.logits, choice.mask
    shaped("logits", logits, np.float32, (logits.size,))
    if mask is not None:
        shaped("mask", mask, np.uint32, (mask.size,))
    return (
        logits.ctypes.data, 0 if mask is None else mask.ctypes.data, choice.number, choice.top_p,
        choice.min_p, choice.temperature, choice.top_k, logits.size, 0 if mask is None else mask.size,
    )  # fmt: skip


def kv_struct(layer: NativePages) -> KVLayerStruct:
    """One layer's pages for the library. Raises NativeUnsupported where their layout is not the library's."""
    layout = layer.layout
    if layout.order is not KVOrder.BKSD or layout.dtype not in (KVType.BF16, KVType.INT8):
        raise NativeUnsupported(
            f"pages are {layout.order} {layout.dtype}; the library reads bksd bfloat16 or int8"
        )
    num_blocks = layer.keys.shape[0]
    shape = layout.shape(num_blocks)
    elements = np.int8 if layout.is_int8 else np.uint16
    arrays: dict[str, tuple[AnyArray, type, tuple[int, ...]]] = {
        "keys": (layer.keys, elements, shape),
        "values": (layer.values, elements, shape),
    }
    if layout.is_int8:
        for name, scales in (("key_scales", layer.key_scales), ("value_scales", layer.value_scales)):
            if scales is None:
                raise NativeError(f"INT8 pages need {name}")
            arrays[name] = (scales, np.float32, shape[:3])
    strides = {_block_stride(name, *rest) for name, rest in arrays.items()}
    if len(strides) > 1:
        raise NativeError(
            f"a layer's blocks lie {sorted(strides)} blocks apart; keys, values and scales must agree"
        )
    return KVLayerStruct(
        num_blocks=num_blocks,
        block_size=layout.block_size,
        num_kv_heads=layout.num_kv_heads,
        head_size=layout.head_size,
        is_int8=layout.is_int8,
        block_stride=strides.pop(),
        **{name: array.ctypes.data for name, (array, _, _) in arrays.items()},
    )


def _block_stride(name: str, array: AnyArray, dtype: type, shape: tuple[int, ...]) -> int:
    """How many blocks lie from one to the next, each of them in one piece. Raises NativeError."""
    shaped(name, array[0], dtype, shape[1:])
    block_bytes = array[0].nbytes
    stride, rest = divmod(array.strides[0], block_bytes)
    if array.shape != shape or rest or stride < 1:
        raise NativeError(
            f"{name} is {list(array.shape)}, blocks of {block_bytes} bytes {array.strides[0]} apart; it "
            f"must be {list(shape)}, whole blocks apart"
        )
    return int(stride)


def step_struct(
    batch: NativeBatch,
    best: TopTokens,
    logits: Float32Array | None,
    hidden: Float32Array | None,
    layers: SomeLayers | None,
) -> StepStruct:
    """The batch and its outputs for the library. Raises NativeError."""
    num_tokens, num_rows = batch.tokens.size, batch.logit_rows.size
    num_sequences = batch.context_lens.size
    if batch.block_tables.ndim != 2:
        raise NativeError(f"block_tables has {batch.block_tables.ndim} axes; it must have 2")
    max_blocks = batch.block_tables.shape[1]
    shapes = {
        "tokens": (num_tokens,), "positions": (num_tokens,), "slots": (num_tokens,),
        "query_starts": (num_sequences + 1,), "context_lens": (num_sequences,),
        "prompt_lens": (num_sequences,),
        "block_tables": (num_sequences, max_blocks), "logit_rows": (num_rows,),
    }  # fmt: skip
    for name, shape in shapes.items():
        shaped(name, getattr(batch, name), np.int32, shape)
    return StepStruct(
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        max_blocks=max_blocks,
        num_logit_rows=num_rows,
        top_k=best.ids.shape[1],
        first_layer=0 if layers is None else layers.first,
        end_layer=0 if layers is None else layers.end,
        **{name: getattr(batch, name).ctypes.data for name in shapes},
        logits=None if logits is None else logits.ctypes.data,
        hidden=None if hidden is None else hidden.ctypes.data,
        top_ids=best.ids.ctypes.data,
        top_values=best.values.ctypes.data,
        between=None if layers is None else layers.between.ctypes.data,
    )
