"""Single native operations, for parity tests and for looking into pages. A model calls none of them."""

import ctypes
from dataclasses import dataclass
from typing import Self

import numpy as np

from kernels.cpu.abi import AttentionStruct, GateActivation, Kind, Source
from kernels.cpu.library import NativeLibrary
from kernels.cpu.pages import NativePages
from kernels.cpu.structs import (
    AnyArray,
    Float32Array,
    Int32Array,
    KeptArrays,
    MatrixExtras,
    kv_struct,
    matrix_struct,
)


class NativeLinear:
    """One packed matrix."""

    def __init__(
        self,
        library: NativeLibrary,
        rows: AnyArray,
        source: Source,
        *,
        kind: Kind | None = None,
        scales: Float32Array | None = None,
        minima: Float32Array | None = None,
        order: Int32Array | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        """Packs `rows` as `NativeModelBuilder.set_linear` does. Raises NativeError."""
        self._library = library
        keep = KeptArrays()
        extras = MatrixExtras(scales=scales, minima=minima, order=order, bias=bias)
        struct = matrix_struct(keep, rows, source, kind, extras)
        self.num_outputs, self.num_inputs = int(struct.num_outputs), int(struct.num_inputs)
        self._handle = ctypes.c_void_p()
        status = library.functions.acpu_linear_create(ctypes.byref(struct), ctypes.byref(self._handle))
        if status:
            self._library.functions.acpu_linear_destroy(self._handle)
        library.check(status)

    def run(self, x: Float32Array, out: Float32Array, level: str = "", activation_bits: int = 8) -> None:
        """out = x @ weight.T: [rows, num_inputs] to [rows, num_outputs]; activations as in a step."""
        assert x.shape[1] == self.num_inputs
        assert out.shape == (x.shape[0], self.num_outputs)
        call = self._library.functions.acpu_linear_run
        self._library.check(
            call(self._handle, level.encode(), x.ctypes.data, out.ctypes.data, x.shape[0], activation_bits)
        )

    def row(self, index: int) -> Float32Array:
        """Output channel `index` as packed: [num_inputs]."""
        out = np.full(self.num_inputs, np.nan, np.float32)
        self._library.check(self._library.functions.acpu_linear_row(self._handle, index, out.ctypes.data))
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.functions.acpu_linear_destroy(self._handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Attention of one sequence's T new tokens, the first at `first_position`, over its pages.

    q [T, heads, head_size]; k and v [T, kv_heads, head_size] are turned and written first, unless None.
    cos and sin [T, rotary_size / 2]. `by_split` goes one token at a time and merges splits, as decode does.
    """

    q: Float32Array
    k: Float32Array | None
    v: Float32Array | None
    blocks: Int32Array
    first_position: int
    scale: float
    cos: Float32Array | None = None
    sin: Float32Array | None = None
    q_norm: Float32Array | None = None
    k_norm: Float32Array | None = None
    eps: float = 1e-6
    softcap: float = 0.0
    window: int = 0
    by_split: bool = False


def attend(
    library: NativeLibrary, pages: NativePages, call: AttentionCall, out: Float32Array, level: str = ""
) -> None:
    """Fills out [T, heads, head_size]. Raises NativeError."""
    arrays = {
        name: getattr(call, name) for name in ("q", "k", "v", "q_norm", "k_norm", "cos", "sin", "blocks")
    }
    struct = AttentionStruct(
        num_tokens=call.q.shape[0],
        num_heads=call.q.shape[1],
        rotary_size=0 if call.cos is None else 2 * call.cos.shape[1],
        window=call.window,
        first_position=call.first_position,
        max_blocks=call.blocks.size,
        by_split=call.by_split,
        scale=call.scale,
        softcap=call.softcap,
        eps=call.eps,
        **{name: None if array is None else array.ctypes.data for name, array in arrays.items()},
        out=out.ctypes.data,
    )
    kv = kv_struct(pages)
    library.check(library.functions.acpu_attend(level.encode(), ctypes.byref(kv), ctypes.byref(struct)))


def read_kv(
    library: NativeLibrary, pages: NativePages, blocks: Int32Array, num_slots: int
) -> tuple[Float32Array, Float32Array]:
    """A sequence's first `num_slots` keys and values, plain: [num_slots, kv_heads, head_size] each."""
    shape = (num_slots, pages.layout.num_kv_heads, pages.layout.head_size)
    keys, values = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    kv, call = kv_struct(pages), library.functions.acpu_kv_read
    addresses = (keys.ctypes.data, values.ctypes.data)
    library.check(call(ctypes.byref(kv), blocks.ctypes.data, blocks.size, num_slots, *addresses))
    return keys, values


def rms_norm(
    library: NativeLibrary,
    x: Float32Array,
    weight: Float32Array,
    out: Float32Array,
    eps: float,
    level: str = "",
) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, by row of [rows, size]."""
    rows, size = x.shape
    addresses = (x.ctypes.data, weight.ctypes.data, out.ctypes.data)
    library.check(library.functions.acpu_rms_norm(level.encode(), *addresses, rows, size, eps))


def gated(
    library: NativeLibrary,
    activation: GateActivation,
    gate: Float32Array,
    up: Float32Array,
    out: Float32Array,
    level: str = "",
) -> None:
    """out = activation(gate) * up, element by element."""
    addresses = (gate.ctypes.data, up.ctypes.data, out.ctypes.data)
    library.check(library.functions.acpu_gated(level.encode(), activation, *addresses, gate.size))


def top_k(
    library: NativeLibrary, logits: Float32Array, k: int, level: str = ""
) -> tuple[Int32Array, Float32Array]:
    """The k largest of [size], largest first, equal ones by lowest id."""
    ids, values = np.full(k, -2, np.int32), np.full(k, np.nan, np.float32)
    addresses = (ids.ctypes.data, values.ctypes.data)
    call = library.functions.acpu_top_k
    library.check(call(level.encode(), logits.ctypes.data, logits.size, k, *addresses))
    return ids, values
