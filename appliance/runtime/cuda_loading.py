"""What of a model goes onto a GPU, in which precision, and what that leaves. Knows no queue."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from appliance.errors import BadSetting, NotEnoughMemory
from appliance.formats.tensor_file import TensorFile
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights
from appliance.runtime.bitsandbytes_packing import bitsandbytes_packing
from appliance.runtime.cuda import CudaBackend, cuda_kv_layout, least_reserve
from appliance.runtime.gpu_device import GpuFacts
from appliance.runtime.graph_capture import CudaGraphCapture
from appliance.runtime.human_size import human_size
from appliance.runtime.kv_demand import FEWEST_USEFUL_TOKENS
from appliance.runtime.kv_policy import wanted_tokens
from appliance.runtime.loading import LoadWishes
from appliance.runtime.precision import kv_dtype
from appliance.runtime.precision_names import BITSANDBYTES
from appliance.runtime.weight_packing import Packing, int4_packing, int8_packing
from appliance.runtime.weights_room import SizedWeights, narrower_than, too_large
from kernels.tables import gpu_ops

# Bytes per element of the layers' matrices, scales included: 4 per row of INT8, 4 per group of 32 of 4 bits.
# Of NF4: 4 per 64. What a precision map keeps in 16 bits is a fraction of int8-mixed.
_MATRIX_BYTES = {
    "bf16": 2.0,
    "f16": 2.0,
    "int8": 1.01,
    "int8-mixed": 1.3,
    "int4": 0.625,
    "nf4": 0.5625,
    "llm.int8": 1.01,
}
_DENSE = {"bf16": torch.bfloat16, "f16": torch.float16}
# From the most exact down, for files of 16 bits and more.
_LADDER = ("bf16", "int8", "int4")
# Expected of steps' own memory, before it is measured.
EXPECTED_WORKSPACE = 2**30
TAKEN_MEANWHILE = (
    "the GPU ran out of memory while weights were loaded, which other programs must have taken meanwhile; "
    "close them, or choose a narrower --precision"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDemands:
    """What the user asked for, as far as it decides what fits."""

    precision: str
    kv_dtype: str
    max_sequences: int
    step_tokens: int
    context_length: int
    is_context_asked: bool

    @property
    def num_wanted_tokens(self) -> int:
        return wanted_tokens(self.context_length, self.max_sequences, is_context_asked=self.is_context_asked)


def demands_of(wishes: LoadWishes, config: ModelConfig) -> CudaDemands:
    """Return what the wishes ask of a model on a GPU."""
    return CudaDemands(
        precision=wishes.precision,
        kv_dtype=wishes.kv_dtype,
        max_sequences=wishes.max_sequences,
        step_tokens=wishes.step_tokens,
        context_length=wishes.served_context or config.context_length,
        is_context_asked=wishes.served_context is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPlan:
    """A precision that fits, and its arithmetic."""

    precision: str
    dtype: torch.dtype
    kv_name: str
    kv_type: torch.dtype
    weights_bytes: int
    reserve_bytes: int
    packing: Packing | None
    narrower: tuple[SizedWeights, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Elements of the layers' matrices, which a precision narrows, and of all else, which stays 16-bit."""

    num_matrix: int
    num_other: int
    bits_in_file: float  # per element of the matrices

    @classmethod
    def of(cls, file: TensorFile) -> "WeightSizes":
        matrix = other = raw_bytes = 0
        for name, tensor in file.tensors.items():
            if len(tensor.shape) > 1 and _is_layer(name):
                matrix += tensor.num_elements
                raw_bytes += (
                    tensor.num_bytes
                    if tensor.packed_bits is None
                    else tensor.num_elements * tensor.packed_bits // 8
                )
            else:
                other += tensor.num_elements
        return cls(matrix, other, 8 * raw_bytes / max(matrix, 1))

    def num_bytes(self, precision: str) -> int:
        return int(self.num_matrix * _MATRIX_BYTES[precision]) + 2 * self.num_other


def _is_layer(name: str) -> bool:
    return any(part.isdigit() for part in name.split("."))


def plan_cuda(file: TensorFile, config: ModelConfig, demands: CudaDemands, gpu: GpuFacts) -> CudaPlan:
    """Choose a precision. Raises BadSetting, or NotEnoughMemory that says what would fit."""
    sizes = WeightSizes.of(file)
    reserve_bytes = least_reserve(gpu.total_bytes)
    room = gpu.free_bytes - reserve_bytes - EXPECTED_WORKSPACE
    kv_bytes = _wanted_kv_bytes(config, demands)
    precision = demands.precision
    if precision == "auto":
        precision = choose_precision(sizes, room_bytes=room, kv_bytes=kv_bytes)
    if precision not in _MATRIX_BYTES:
        raise BadSetting(
            f"--precision {precision} does not run on the GPU backend; choose auto, bf16, f16, int8, "
            "int8-mixed, int4, nf4 or llm.int8",
            param="precision",
        )
    if demands.kv_dtype == "f32":
        raise BadSetting(
            "--kv-dtype f32 does not run on the GPU backend; choose auto, bf16, f16 or int8", param="kv_dtype"
        )
    weights_bytes = sizes.num_bytes(precision)
    weights = SizedWeights(precision, weights_bytes)
    narrower = narrower_than(weights, [SizedWeights(name, sizes.num_bytes(name)) for name in _LADDER])
    if weights_bytes > room:
        pool_bytes = min(FEWEST_USEFUL_TOKENS, demands.context_length) * _int8_token_bytes(config)
        raise NotEnoughMemory(_refusal(file.path.name, sizes, weights, narrower, room, pool_bytes, gpu))
    dtype = _DENSE.get(precision, torch.bfloat16)
    kv_name, kv_type = kv_dtype(demands.kv_dtype, precision if precision in _DENSE else "bf16")
    logger.info(
        "GPU memory: %s, %s of %s free; %s weights %s, then what steps take is measured",
        *(gpu.name, human_size(gpu.free_bytes), human_size(gpu.total_bytes)),
        *(precision, human_size(weights_bytes)),
    )
    return CudaPlan(
        precision=precision,
        dtype=dtype,
        kv_name=kv_name,
        kv_type=kv_type,
        weights_bytes=weights_bytes,
        reserve_bytes=reserve_bytes,
        packing=None if precision in _DENSE else _packing(precision, dtype),
        narrower=narrower,
    )


def _packing(precision: str, dtype: torch.dtype) -> Packing:
    if precision in BITSANDBYTES:
        return bitsandbytes_packing(precision, dtype)
    return int4_packing(dtype) if precision == "int4" else int8_packing(dtype)


def choose_precision(sizes: WeightSizes, *, room_bytes: int, kv_bytes: int) -> str:
    """Return the file's own precision where a kernel has it, else the most exact that leaves a useful pool.

    Where none leaves one, the narrowest whose weights fit at all.
    """
    if sizes.bits_in_file <= 9:
        own = "int4" if sizes.bits_in_file <= 5.1 else "int8"
        ladder: Iterable[str] = _LADDER[_LADDER.index(own) :]
    else:
        ladder = _LADDER
    fitting = (name for name in ladder if sizes.num_bytes(name) + kv_bytes <= room_bytes)
    return next(fitting, "int4")


def _wanted_kv_bytes(config: ModelConfig, demands: CudaDemands) -> int:
    """Of the pool that is wanted, in INT8 where that is open: it is taken before weights are narrowed."""
    is_open = demands.kv_dtype in ("auto", "int8")
    layout = cuda_kv_layout(config, torch.int8 if is_open else torch.bfloat16)
    return demands.num_wanted_tokens * layout.token_bytes * config.num_layers


def _int8_token_bytes(config: ModelConfig) -> int:
    return cuda_kv_layout(config, torch.int8).token_bytes * config.num_layers


def _refusal(
    name: str,
    sizes: WeightSizes,
    weights: SizedWeights,
    narrower: tuple[SizedWeights, ...],
    room: int,
    pool_bytes: int,
    gpu: GpuFacts,
) -> str:
    return too_large(
        name,
        weights,
        narrower,
        place=_place(gpu, room),
        room_bytes=room - pool_bytes,
        num_parameters=sizes.num_matrix + sizes.num_other,
        held_bytes=_held_by_others(gpu),
    )


def _place(gpu: GpuFacts, room: int) -> str:
    return (
        f"the {gpu.name} has {human_size(max(room, 0))} for weights ({human_size(gpu.free_bytes)} free of "
        f"{human_size(gpu.total_bytes)})"
    )


def _held_by_others(gpu: GpuFacts) -> int:
    """Bytes, where they are worth a word."""
    held = gpu.total_bytes - gpu.free_bytes
    return held if held > gpu.total_bytes // 10 else 0


def open_backend(
    config: ModelConfig,
    weights: DecoderWeights,
    plan: CudaPlan,
    demands: CudaDemands,
    kernel_folder: Path | None,
) -> tuple[CudaBackend, int]:
    """Return a backend that has run its largest steps once, and the bytes those took.

    Raises NotEnoughMemory where they do not fit.
    """
    ops, device = gpu_ops(), weights.embedding.device
    if kernel_folder is not None:
        _keep_kernels_in(kernel_folder)
    backend = CudaBackend(
        config,
        weights,
        ops,
        cuda_kv_layout(config, plan.kv_type),
        max_sequences=demands.max_sequences,
        context_length=demands.context_length,
        # The library looks on the host for outliers.
        new_capture=None if plan.precision in BITSANDBYTES else lambda: CudaGraphCapture(device),
    )
    if not backend.records_steps:
        reason = f"--precision {plan.precision}" if config.experts is None else "a mixture of experts"
        logger.warning("%s runs without CUDA graphs, which is slower at few sequences", reason)
    torch.cuda.empty_cache()
    try:
        workspace_bytes = backend.rehearse(
            step_tokens=demands.step_tokens, free_bytes=lambda: torch.cuda.mem_get_info(device)[0]
        )
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(_too_little_for_steps(plan, demands)) from error
    logger.info("GPU memory: the largest steps and all decode graphs took %s", human_size(workspace_bytes))
    return backend, workspace_bytes


def _too_little_for_steps(plan: CudaPlan, demands: CudaDemands) -> str:
    choice = f"--precision {plan.narrower[0].precision}" if plan.narrower else "a smaller model"
    return (
        f"{plan.precision} weights take {human_size(plan.weights_bytes)} and leave too little to compute "
        f"{demands.max_sequences} sequences and {demands.step_tokens} tokens at once; lower "
        f"--max-sequences to {max(1, demands.max_sequences // 4)} and --step-tokens to "
        f"{max(16, demands.step_tokens // 2)}, or choose {choice}"
    )


def _keep_kernels_in(folder: Path) -> None:
    from kernels.gpu_launch import keep_compiled_in

    keep_compiled_in(folder)
