"""The library's C interface as ctypes sees it: enumerations, structs and prototypes. Mirrors `src/acpu.h`."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum

ABI_VERSION = 5
# Activations of 8 bits, and of 16 in the groups of 32 that stand out in their row.
MIXED_BITS = 0


class Kind(IntEnum):
    """How a packed matrix is held. Grouped kinds share a scale among 32 inputs."""

    F32 = 0
    BF16 = 1
    CHANNEL8 = 2  # INT8 with a float32 scale per output channel
    GROUP8 = 3  # Q8_0 as it is
    GROUP4 = 4  # Q4_0 as it is
    GROUP4_MIN = 5  # Q4_1 as it is
    AFFINE8 = 6  # unsigned 8 bits, float32 scale and minimum
    AFFINE4 = 7  # unsigned 4 bits, float32 scale and minimum


class Source(IntEnum):
    """How rows given for packing are stored."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q8_0 = 5
    AFFINE = 6  # uint8 quants, with float32 scales and minima beside them

    @property
    def block(self) -> tuple[int, int]:
        """Elements and bytes of the smallest whole piece of a row."""
        return {
            Source.F32: (1, 4), Source.F16: (1, 2), Source.BF16: (1, 2), Source.Q4_0: (32, 18),
            Source.Q4_1: (32, 20), Source.Q8_0: (32, 34), Source.AFFINE: (32, 32),
        }[self]  # fmt: skip


class Role(IntEnum):
    """A matrix's place in the network."""

    EMBEDDING = 0
    HEAD = 1
    QUERY = 2
    KEY = 3
    VALUE = 4
    OUTPUT = 5
    GATE = 6
    UP = 7
    DOWN = 8
    ROUTER = 9


class NormRole(IntEnum):
    """A norm's place in the network."""

    FINAL = 0
    ATTENTION_PRE = 1
    ATTENTION_POST = 2
    FFN_PRE = 3
    FFN_POST = 4
    QUERY = 5
    KEY = 6


class GateActivation(IntEnum):
    SILU = 0
    GELU_TANH = 1


class HeadNorm(IntEnum):
    """What of queries and keys is normed: each head by itself, or all heads of a token together."""

    NONE = 0
    HEAD = 1
    FULL = 2


class Placement(IntEnum):
    """Norms before a block, after it, or on both sides."""

    PRE = 0
    POST = 1
    BOTH = 2


class RopeStruct(Structure):
    _fields_ = (("frequencies", c_void_p), ("rotary_size", c_int32), ("attention_factor", c_float))


class SizedStruct(Structure):
    """Every struct begins with its own size, which the library checks."""

    def __init__(self, **values: object) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **values)


class ConfigStruct(SizedStruct):
    _fields_ = (
        ("struct_bytes", c_int32), ("num_layers", c_int32), ("hidden_size", c_int32),
        ("intermediate_size", c_int32), ("num_heads", c_int32), ("num_kv_heads", c_int32),
        ("head_size", c_int32), ("vocab_size", c_int32), ("max_tokens", c_int32), ("activation", c_int32),
        ("norm_placement", c_int32), ("qk_norm", c_int32), ("num_experts", c_int32),
        ("num_active_experts", c_int32), ("expert_size", c_int32), ("normalizes_experts", c_int32),
        ("norm_eps", c_float), ("attention_scale", c_float), ("attention_softcap", c_float),
        ("logit_softcap", c_float), ("logit_scale", c_float), ("residual_scale", c_float),
        ("embedding_scale", c_float), ("num_ropes", c_int32), ("num_threads", c_int32), ("spin_us", c_int32),
        ("activation_bits", c_int32), ("is_rough", c_int32),
        ("ropes", POINTER(RopeStruct)), ("rope_of_layer", c_void_p), ("windows", c_void_p),
        ("level", c_char_p),
    )  # fmt: skip


class MatrixStruct(SizedStruct):
    _fields_ = (
        ("struct_bytes", c_int32), ("source", c_int32), ("kind", c_int32), ("num_outputs", c_int32),
        ("num_inputs", c_int32), ("reserved", c_int32), ("rows", c_void_p), ("rows_bytes", c_size_t),
        ("scales", c_void_p), ("minima", c_void_p), ("order", c_void_p), ("bias", c_void_p),
    )  # fmt: skip


class KVLayerStruct(SizedStruct):
    _fields_ = (
        ("struct_bytes", c_int32), ("num_blocks", c_int32), ("block_size", c_int32),
        ("num_kv_heads", c_int32), ("head_size", c_int32), ("is_int8", c_int32), ("block_stride", c_int32),
        ("keys", c_void_p), ("values", c_void_p),
        ("key_scales", c_void_p), ("value_scales", c_void_p),
    )  # fmt: skip


class StepStruct(SizedStruct):
    _fields_ = (
        ("struct_bytes", c_int32), ("num_tokens", c_int32), ("num_sequences", c_int32),
        ("max_blocks", c_int32), ("num_logit_rows", c_int32), ("top_k", c_int32), ("first_layer", c_int32),
        ("end_layer", c_int32), ("tokens", c_void_p), ("positions", c_void_p),
        ("slots", c_void_p), ("query_starts", c_void_p), ("context_lens", c_void_p),
        ("prompt_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logit_rows", c_void_p), ("logits", c_void_p), ("hidden", c_void_p), ("top_ids", c_void_p),
        ("top_values", c_void_p), ("between", c_void_p),
    )  # fmt: skip


class AttentionStruct(SizedStruct):
    _fields_ = (
        ("struct_bytes", c_int32), ("num_tokens", c_int32), ("num_heads", c_int32), ("rotary_size", c_int32),
        ("window", c_int32), ("first_position", c_int32), ("max_blocks", c_int32), ("by_split", c_int32),
        ("scale", c_float), ("softcap", c_float), ("eps", c_float), ("q", c_void_p), ("k", c_void_p),
        ("v", c_void_p), ("q_norm", c_void_p), ("k_norm", c_void_p), ("cos", c_void_p), ("sin", c_void_p),
        ("blocks", c_void_p), ("out", c_void_p),
    )  # fmt: skip


_INT, _POINTER = c_int32, c_void_p
_STATUS_CALLS: dict[str, tuple[type, ...]] = {
    "acpu_model_create": (POINTER(ConfigStruct), POINTER(c_void_p)),
    "acpu_model_set_linear": (_POINTER, _INT, _INT, POINTER(MatrixStruct)),
    "acpu_model_set_expert": (_POINTER, _INT, _INT, _INT, POINTER(MatrixStruct)),
    "acpu_model_set_norm": (_POINTER, _INT, _INT, _POINTER, _INT),
    "acpu_model_finish": (_POINTER,),
    "acpu_model_bind_kv": (_POINTER, POINTER(KVLayerStruct), _INT),
    "acpu_model_step": (_POINTER, POINTER(StepStruct)),
    "acpu_model_choose": (_POINTER, _POINTER, _INT, _INT, _POINTER),
    "acpu_model_weight_bytes": (_POINTER, POINTER(c_int64)),
    "acpu_model_phase_seconds": (_POINTER, POINTER(c_double), _INT),
    "acpu_linear_create": (POINTER(MatrixStruct), POINTER(c_void_p)),
    "acpu_linear_run": (_POINTER, c_char_p, _POINTER, _POINTER, _INT, _INT),
    "acpu_linear_row": (_POINTER, _INT, _POINTER),
    "acpu_rms_norm": (c_char_p, _POINTER, _POINTER, _POINTER, _INT, _INT, c_float),
    "acpu_gated": (c_char_p, _INT, _POINTER, _POINTER, _POINTER, _INT),
    "acpu_top_k": (c_char_p, _POINTER, _INT, _INT, _POINTER, _POINTER),
    "acpu_attend": (c_char_p, POINTER(KVLayerStruct), POINTER(AttentionStruct)),
    "acpu_kv_read": (POINTER(KVLayerStruct), _POINTER, _INT, _INT, _POINTER, _POINTER),
}


def declare(library: ctypes.CDLL) -> None:
    """Gives every function its argument and result types."""
    for name, arguments in _STATUS_CALLS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int32
    library.acpu_abi_version.restype = c_int32
    for name in ("acpu_last_error", "acpu_levels"):
        getattr(library, name).restype = c_char_p
    library.acpu_model_level.argtypes, library.acpu_model_level.restype = (c_void_p,), c_char_p
    for name in ("acpu_model_destroy", "acpu_linear_destroy"):
        getattr(library, name).argtypes, getattr(library, name).restype = (c_void_p,), None
