"""The native CPU engine from Python: build a model of packed weights, bind it to KV pages, run steps.

    library = NativeLibrary(build(cache_folder))
    builder = NativeModelBuilder(library, NativeConfig(...))
    builder.set_linear(Role.QUERY, 0, rows, Source.Q4_1)      # numpy rows, straight from the file's mapping
    builder.set_norm(NormRole.ATTENTION_PRE, 0, weight)       # float32
    model = builder.finish()                                  # rows may be unmapped from here on
    model.bind_kv(allocate_pages(layout, num_blocks, num_layers))
    best = model.step(batch)                                  # one whole step; releases the interpreter lock

A step runs any mix of prefill chunks and decodes. `batch` is a NativeBatch of int32 arrays; the result is the
`top_k` best tokens of each logit row, best first (top_k=1: greedy). Pass `logits` to have all of them.

Pages. Shapes and sizes are those of `KVLayout` in BKSD order with bfloat16 or int8 elements, blocks of 16
to 256 slots (a power of two, 64 is best). Within one block and head the elements are interleaved for the
dot instructions: keys [head_size / 2][block_size][2], values [block_size / 2][head_size][2]. So whole blocks
may be copied, moved or stored by anyone, and `kernels.cpu.ops.read_kv` gives a sequence's in plain order.

Exactness. A row's logits do not depend on the other rows of the step, on how a prompt is cut into chunks, or
on the number of threads: every sum has one order. In the last bits they depend on the instruction-set level.

Knows no model file, no tokens' meaning and no scheduler. One step at a time per model: others wait.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from kernels.cpu.abi import (
    ConfigStruct,
    GateActivation,
    HeadNorm,
    Kind,
    KVLayerStruct,
    NormRole,
    Placement,
    Role,
    RopeStruct,
    Source,
)
from kernels.cpu.library import NativeError, NativeLibrary
from kernels.cpu.pages import NativePages
from kernels.cpu.structs import (
    AnyArray,
    Float32Array,
    Int32Array,
    KeptArrays,
    MatrixExtras,
    NativeBatch,
    RowChoice,
    SomeLayers,
    TopTokens,
    choice_structs,
    kv_struct,
    matrix_struct,
    shaped,
    step_struct,
)

PHASES = ("qkv", "attention", "output", "gate_up", "down", "head", "sample", "prepare")


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRope:
    """Rotation of the leading 2 * len(frequencies) elements of a head, first half with second half.

    `frequencies` in radians per position, scaling already applied; cosines and sines are multiplied by
    `attention_factor`.
    """

    frequencies: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """A network's shape. `ropes[i]` and `windows[i]` belong to layer i; None: no rotation, no window.

    `num_threads` counts the caller. `max_tokens` bounds one step. `spin_us` is how long idle threads watch
    for the next step before they sleep. `activation_bits` is 8; 12 for a sixteenth of that rounding, at the
    price of a second pass over weights in cache; or MIXED_BITS for that range in four inputs of each 32
    alone, those with the largest value. `is_rough` lets levels with a tile unit multiply the rows of
    prompts in bfloat16, weights and activations alike, several times as fast; on other levels 12 bits then
    are MIXED_BITS. `level` names an instruction-set level; empty picks the best.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    norm_eps: float
    attention_scale: float
    ropes: tuple[NativeRope | None, ...]
    windows: tuple[int | None, ...]
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    residual_scale: float = 1.0
    embedding_scale: float = 1.0
    qk_norm: HeadNorm = HeadNorm.NONE
    norm_placement: Placement = Placement.PRE
    activation: GateActivation = GateActivation.SILU
    num_experts: int = 0  # 0: a dense network
    num_active_experts: int = 0
    expert_size: int = 0
    normalizes_experts: bool = False
    max_tokens: int = 8192
    num_threads: int = 1
    spin_us: int = 200
    activation_bits: int = 8
    is_rough: bool = False
    level: str = ""


class NativeModelBuilder:
    """Packs weights into a model, one tensor at a time; memory beyond the packed weights is a few rows."""

    def __init__(self, library: NativeLibrary, config: NativeConfig) -> None:
        """Raises NativeUnsupported where the library cannot run this shape, NativeError where it is wrong."""
        self._library = library
        self._config = config
        self._handle = _create(library, config)

    def set_linear(
        self,
        role: Role,
        layer: int,
        rows: AnyArray,
        source: Source,
        *,
        kind: Kind | None = None,
        scales: Float32Array | None = None,
        minima: Float32Array | None = None,
        order: Int32Array | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        """Packs `rows` [num_outputs, ...], C-contiguous: blocks as bytes, or elements.

        `kind` None keeps the file's values exactly where it is quantized, else INT8 per channel. `order[i]`
        is the row that becomes output i. `bias` [num_outputs] is in output order. `scales` and `minima`
        [num_outputs, num_inputs / 32], in row order, go with Source.AFFINE. For roles without a layer,
        `layer` is 0. Raises NativeError.
        """
        keep = KeptArrays()
        extras = MatrixExtras(scales=scales, minima=minima, order=order, bias=bias)
        struct = matrix_struct(keep, rows, source, kind, extras)
        call = self._library.functions.acpu_model_set_linear
        self._library.check(call(self._live_handle(), role, layer, ctypes.byref(struct)))

    def set_expert(
        self,
        role: Role,
        layer: int,
        expert: int,
        rows: AnyArray,
        source: Source,
        *,
        kind: Kind | None = None,
    ) -> None:
        """Packs one expert's GATE, UP or DOWN as `set_linear` does. Raises NativeError."""
        keep = KeptArrays()
        struct = matrix_struct(keep, rows, source, kind, MatrixExtras())
        call = self._library.functions.acpu_model_set_expert
        self._library.check(call(self._live_handle(), role, layer, expert, ctypes.byref(struct)))

    def set_norm(self, role: NormRole, layer: int, weight: Float32Array) -> None:
        """A norm's weight as it multiplies (Gemma's one already added). Raises NativeError."""
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        call = self._library.functions.acpu_model_set_norm
        self._library.check(call(self._live_handle(), role, layer, weight.ctypes.data, weight.size))

    def finish(self) -> "NativeModel":
        """The model; the builder is spent. Without a HEAD the embedding serves as one. Raises NativeError."""
        self._library.check(self._library.functions.acpu_model_finish(self._live_handle()))
        model = NativeModel(self._library, self._config, self._live_handle())
        self._handle = None
        return model

    def close(self) -> None:
        """Frees what was packed, unless a model was made of it."""
        if self._handle is not None:
            self._library.functions.acpu_model_destroy(self._handle)
            self._handle = None

    def _live_handle(self) -> int:
        if self._handle is None:
            raise NativeError("the builder is spent: it has made its model or is closed")
        return self._handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NativeModel:
    """Packed weights and the threads that run them. Close it to free both."""

    def __init__(self, library: NativeLibrary, config: NativeConfig, handle: int) -> None:
        self.config = config
        self._library = library
        self._handle: int | None = handle
        self._pages: tuple[NativePages, ...] = ()

    @property
    def level(self) -> str:
        return str(self._library.functions.acpu_model_level(self._live_handle()).decode())

    @property
    def weight_bytes(self) -> int:
        value = ctypes.c_int64()
        call = self._library.functions.acpu_model_weight_bytes
        self._library.check(call(self._live_handle(), ctypes.byref(value)))
        return value.value

    def bind_kv(self, layers: Sequence[NativePages]) -> None:
        """The pages that steps write and read, one item per layer; kept alive here. Raises NativeError."""
        structs = (KVLayerStruct * len(layers))(*(kv_struct(layer) for layer in layers))
        call = self._library.functions.acpu_model_bind_kv
        self._library.check(call(self._live_handle(), structs, len(layers)))
        self._pages = tuple(layers)

    def step(
        self,
        batch: NativeBatch,
        *,
        top_k: int = 1,
        logits: Float32Array | None = None,
        hidden: Float32Array | None = None,
        layers: SomeLayers | None = None,
    ) -> TopTokens:
        """Runs the batch and returns the `top_k` (0 to 1,024) best tokens of each logit row.

        Fills `logits` [R, vocab_size] and `hidden` [R, hidden_size] (after the final norm) where given. With
        `layers` only those are run; the call with the last ones has the logit rows.
        Raises NativeError, before anything is written, where the batch does not fit the model or its pages.
        """
        num_rows = batch.logit_rows.size
        best = TopTokens(np.empty((num_rows, top_k), np.int32), np.empty((num_rows, top_k), np.float32))
        shaped("logits", logits, np.float32, (num_rows, self.config.vocab_size))
        shaped("hidden", hidden, np.float32, (num_rows, self.config.hidden_size))
        if layers is not None:
            shaped("between", layers.between, np.float32, (batch.tokens.size, self.config.hidden_size))
        struct = step_struct(batch, best, logits, hidden, layers)
        call = self._library.functions.acpu_model_step
        self._library.check(call(self._live_handle(), ctypes.byref(struct)))
        return best

    def choose(self, choices: Sequence[RowChoice]) -> list[int]:
        """A token for each row, -1 where there is no finite number to choose by; on the caller's thread.

        No row looks at another. Raises NativeError.
        """
        if not choices:
            return []
        structs, ids = choice_structs(choices), np.empty(len(choices), np.int32)
        call = self._library.functions.acpu_model_choose
        addresses = structs.ctypes.data, structs.itemsize, len(choices), ids.ctypes.data
        self._library.check(call(self._live_handle(), *addresses))
        chosen: list[int] = ids.tolist()
        return chosen

    def take_phase_seconds(self) -> dict[str, float]:
        """Seconds that the caller's thread spent in each phase since last asked."""
        values = (ctypes.c_double * len(PHASES))()
        call = self._library.functions.acpu_model_phase_seconds
        self._library.check(call(self._live_handle(), values, len(PHASES)))
        return dict(zip(PHASES, values, strict=True))

    def close(self) -> None:
        """Frees the weights and ends the threads. Not while a step runs."""
        if self._handle is not None:
            self._library.functions.acpu_model_destroy(self._handle)
            self._handle = None
            self._pages = ()

    def _live_handle(self) -> int:
        if self._handle is None:
            raise NativeError("the model is closed")
        return self._handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _create(library: NativeLibrary, config: NativeConfig) -> int | None:
    if len(config.ropes) != config.num_layers or len(config.windows) != config.num_layers:
        raise NativeError(f"ropes and windows need one item for each of {config.num_layers} layers")
    ropes = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
    frequencies = [np.asarray(rope.frequencies, np.float64) for rope in ropes]
    rope_structs = (RopeStruct * max(1, len(ropes)))(
        *(
            RopeStruct(array.ctypes.data, 2 * array.size, rope.attention_factor)
            for array, rope in zip(frequencies, ropes, strict=True)
        )
    )
    rope_of_layer = np.asarray([-1 if rope is None else ropes.index(rope) for rope in config.ropes], np.int32)
    windows = np.asarray([window or 0 for window in config.windows], np.int32)
    plain = {
        name: getattr(config, name)
        for name in (
            "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size",
            "vocab_size", "max_tokens", "activation", "norm_placement", "qk_norm", "num_experts",
            "num_active_experts", "expert_size", "normalizes_experts",
            "norm_eps", "attention_scale", "logit_scale", "residual_scale", "embedding_scale",
            "num_threads", "spin_us", "activation_bits", "is_rough",
        )
    }  # fmt: skip
    struct = ConfigStruct(
        **plain,
        attention_softcap=config.attention_softcap or 0.0,
        logit_softcap=config.logit_softcap or 0.0,
        num_ropes=len(ropes),
        ropes=rope_structs,
        rope_of_layer=rope_of_layer.ctypes.data,
        windows=windows.ctypes.data,
        level=config.level.encode(),
    )
    handle = ctypes.c_void_p()
    library.check(library.functions.acpu_model_create(ctypes.byref(struct), ctypes.byref(handle)))
    return handle.value
