"""Whether the native CPU backend can run a file, at which precision, and its loading. Knows no settings."""

from dataclasses import dataclass, replace
from pathlib import Path

from appliance.formats.ggml_types import GGMLType
from appliance.formats.tensor_file import StoredTensor
from appliance.model.config import ModelConfig
from appliance.model.rope_override import RopeOverride
from appliance.precision_map import EMPTY_MAP, PrecisionMap
from appliance.runtime.checkpoint import ModelFile, Progress, read_config
from appliance.runtime.cpu import Activations, CpuBackend, cpu_kv_layout, native_config
from appliance.runtime.cpu_weights import PLANS, NativeWeightLoader, PackingPlan
from appliance.runtime.weights_room import SizedWeights, narrower_than
from kernels.cpu.build import BuildError, build
from kernels.cpu.library import NativeLibrary, NativeUnsupported, load_library
from kernels.cpu.native import NativeModelBuilder
from kernels.kv_layout import KVType

_KV_DTYPES = {"auto": KVType.BF16, "bf16": KVType.BF16, "int8": KVType.INT8}
# A packaged build brings the library under this name, without the key that a compiled one has.
SHIPPED_NAME = "libappliance_cpu"
_UNQUANTIZED = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
_FOUR_BIT = (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K)
# One matrix of every layer speaks for all, in either kind of file.
_LINEAR_NAMES = ("attn_output.weight", "self_attn.o_proj.weight")
# From the most exact down.
_LADDER = ("bf16", "int8", "int4")
# Bytes per parameter, scales included.
_BYTES_PER_PARAMETER = {"int4": 0.65, "int8": 1.1, "int8-mixed": 1.3, "bf16": 2.0, "f32": 4.0}
_TABLE_NAMES = ("token_embd.weight", "output.weight", "embed_tokens.weight", "lm_head.weight")


# Bytes per element of types that are not held as they lie in the file; 1.1 is 8 bits with scales.
_HELD_BYTES = {
    GGMLType.Q5_0: 1.1,
    GGMLType.Q5_1: 1.25,
    GGMLType.Q2_K: 1.1,
    GGMLType.Q3_K: 1.1,
    GGMLType.Q4_K: 0.75,
    GGMLType.Q5_K: 1.25,
    GGMLType.Q6_K: 1.1,
    GGMLType.IQ4_NL: 1.1,
    GGMLType.IQ4_XS: 1.1,
    GGMLType.MXFP4: 1.1,
}


class NotNative(Exception):
    """The native backend does not run this here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePlan:
    """How a file will be held, in the words of the settings, and roughly how large that is."""

    packing: PackingPlan
    precision: str
    kv_dtype: str
    kv_type: KVType
    weights_bytes: int
    narrower: tuple[SizedWeights, ...] = ()


def plan_native(
    file: ModelFile, precision: str, kv_dtype: str, precision_map: PrecisionMap = EMPTY_MAP
) -> NativePlan:
    """Decide how to hold the file's weights and its KV. Raises NotNative."""
    if kv_dtype not in _KV_DTYPES:
        raise NotNative(f"its KV cache is bf16 or int8, not {kv_dtype}")
    is_four_bit = _is_four_bit([file.tensor(name) for name in file.tensors if name.endswith(_LINEAR_NAMES)])
    chosen = "auto" if precision == "int4" and is_four_bit else precision
    if chosen not in PLANS:
        raise NotNative(f"it runs the precisions auto, f32, bf16, int8, int8-mixed and int4, not {precision}")
    keeps_blocks = chosen == "auto"
    kv_type = _KV_DTYPES[kv_dtype]
    # The table's word for a file's own blocks; files of 16 bits and more become INT8 per channel.
    word = ("int4" if is_four_bit else "int8") if keeps_blocks else chosen
    weights = SizedWeights(word, _kept_bytes(file) if keeps_blocks else _packed_bytes(file, chosen))
    return NativePlan(
        packing=replace(PLANS[chosen], precision_map=precision_map),
        precision=word,
        kv_dtype="int8" if kv_type is KVType.INT8 else "bf16",
        kv_type=kv_type,
        weights_bytes=weights.num_bytes,
        narrower=narrower_than(weights, _other_sizes(file, is_four_bit=is_four_bit)),
    )


def _other_sizes(file: ModelFile, *, is_four_bit: bool) -> list[SizedWeights]:
    sizes = [SizedWeights(name, _packed_bytes(file, name)) for name in _LADDER]
    # A file of 4 bits is int4 as it lies.
    return [*sizes[:-1], SizedWeights("int4", _kept_bytes(file))] if is_four_bit else sizes


def _packed_bytes(file: ModelFile, precision: str) -> int:
    """What the values take once brought to `precision`; tables stay at 16 bits beside 4-bit matrices."""
    each = _BYTES_PER_PARAMETER[precision]
    return sum(
        int(tensor.num_elements * (2.0 if precision == "int4" and _is_table(name) else each))
        for name, tensor in file.tensors.items()
    )


def _is_table(name: str) -> bool:
    """Whether it is an embedding or a head; `attn_output.weight` is neither."""
    return any(name == table or name.endswith(f".{table}") for table in _TABLE_NAMES)


def _kept_bytes(file: ModelFile) -> int:
    """What the file's own values take once packed, at most: some grow to the next form that kernels take."""
    return sum(_held_bytes(name, tensor) for name, tensor in file.tensors.items())


def _held_bytes(name: str, tensor: StoredTensor) -> int:
    if len(tensor.shape) > 1 and tensor.type in _UNQUANTIZED and tensor.packed_bits is None:
        return int(tensor.num_elements * (2.0 if _is_table(name) else 1.1))
    if tensor.packed_bits is None:
        return max(tensor.num_bytes, int(tensor.num_elements * _HELD_BYTES.get(tensor.type, 0)))
    as_groups = _HELD_BYTES[GGMLType.Q4_K if tensor.packed_bits == 4 else GGMLType.Q5_K]
    return int(tensor.num_elements * (_HELD_BYTES[GGMLType.Q6_K] if tensor.is_shuffled else as_groups))


def _is_four_bit(matrices: list[StoredTensor]) -> bool:
    """Whether their values are held as they are, in 4 bits."""
    return bool(matrices) and all(
        matrix.type in _FOUR_BIT
        if matrix.packed_bits is None
        else matrix.packed_bits == 4 and not matrix.is_shuffled
        for matrix in matrices
    )


def open_library(folder: Path) -> NativeLibrary:
    """Load the native library: one shipped in `folder`, else compiled there at its first use.

    Raises NotNative.
    """
    try:
        shipped = [
            path for suffix in (".so", ".dylib", ".dll") for path in folder.glob(f"{SHIPPED_NAME}{suffix}")
        ]
        if shipped:
            return load_library(shipped[0])
        return load_library(build(folder))
    except (BuildError, OSError) as error:
        raise NotNative(f"the CPU engine could not be built: {error}") from error


def load_native(
    file: ModelFile,
    library: NativeLibrary,
    plan: NativePlan,
    *,
    activations: Activations,
    num_threads: int,
    max_tokens: int,
    served_context: int | None,
    rope: RopeOverride | None,
    progress: Progress,
) -> tuple[CpuBackend, ModelConfig]:
    """Pack the weights. Raises NotNative for a shape the library does not run, BadModelFile."""
    architecture, config = read_config(file, served_context, rope)
    try:
        shape = native_config(config, activations=activations, num_threads=num_threads, max_tokens=max_tokens)
        with NativeModelBuilder(library, shape) as builder:
            NativeWeightLoader(file, builder, plan.packing, progress).load(architecture, config)
            model = builder.finish()
    except NativeUnsupported as error:
        raise NotNative(str(error)) from error
    return CpuBackend(config, model, cpu_kv_layout(config, plan.kv_type)), config
