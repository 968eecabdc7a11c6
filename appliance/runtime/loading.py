"""From an open model file to a backend with its weights: chooses, checks what fits, loads.

Imports torch only for a backend that runs on it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import BadSetting, NotEnoughMemory, NoUsableGpu
from appliance.model.config import ModelConfig
from appliance.model.rope_override import RopeOverride
from appliance.precision_map import EMPTY_MAP, PrecisionMap, check_names
from appliance.runtime import cpu_loading
from appliance.runtime.checkpoint import ModelFile, read_config
from appliance.runtime.cpu import Activations, cpu_kv_layout
from appliance.runtime.device import Device
from appliance.runtime.human_size import human_size
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.precision_names import BITSANDBYTES
from appliance.runtime.weights_room import SizedWeights, too_large
from kernels.cpu.abi import MIXED_BITS
from kernels.kv_layout import KVLayout, KVType

if TYPE_CHECKING:
    from appliance.runtime.backend import Backend

# (what is happening, share done where it is known)
Report = Callable[[str, float | None], None]
# Besides the weights: one chunk on its way, and the allocator's slack.
_LOADING_SLACK_BYTES = 64 * 2**20
# Small models lose answers to 8 bits: SmolLM2's logits are 4.0% off, against 1.5% mixed and 0.5% with 12.
# Of 422 reference tokens 14 differ with 8, 7 when mixed, all of them near ties, 2 with 12: speed is a choice.
_ACTIVATIONS = {
    "auto": Activations(12, is_rough=True),
    "int12": Activations(12, is_rough=False),
    "mixed": Activations(MIXED_BITS, is_rough=True),
    "int8": Activations(8, is_rough=True),
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWishes:
    """What the user asked of a load, in the words of the settings, and what the machine offers."""

    backend: str
    precision: str
    activations: str
    kv_dtype: str
    device: Device
    num_threads: int
    step_tokens: int
    free_bytes: int
    library_folder: Path  # where the native library is, or is built on first use
    served_context: int | None = None  # tokens; None for all that the model allows
    rope: RopeOverride | None = None  # in place of the file's own scaling
    precision_map: PrecisionMap = EMPTY_MAP  # what int8-mixed does
    max_sequences: int = 32
    kernel_folder: Path | None = None  # where compiled GPU kernels are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """What a KV pool beside these weights has to reckon with."""

    layout: KVLayout
    int8_layout: KVLayout | None = None  # None: the same with other elements
    kv_dtype: str
    device_type: str
    num_layers: int
    weights_bytes: int
    workspace_bytes: int = 0
    reserve_bytes: int | None = None
    narrower: tuple[SizedWeights, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBackend:
    """A backend with its weights, not yet with a KV pool, and what was decided on the way."""

    backend: "Backend"
    config: ModelConfig
    backend_name: str
    precision: str
    kv_dtype: str
    weights_bytes: int
    int8_layout: KVLayout | None = None  # as in PoolTerms
    workspace_bytes: int = 0  # of what is free, what steps will take besides the pool
    reserve_bytes: int | None = None  # what the pool leaves besides; None for the usual share
    narrower: tuple[SizedWeights, ...] = ()  # precisions that would leave more

    @property
    def pool_terms(self) -> PoolTerms:
        return PoolTerms(
            layout=self.backend.kv_layout,
            int8_layout=self.int8_layout,
            kv_dtype=self.kv_dtype,
            device_type=self.backend.device.type,
            num_layers=self.config.num_layers,
            weights_bytes=self.weights_bytes,
            workspace_bytes=self.workspace_bytes,
            reserve_bytes=self.reserve_bytes,
            narrower=self.narrower,
        )


def load_backend(file: ModelFile, wishes: LoadWishes, report: Report) -> LoadedBackend:
    """Load the weights onto the best backend that the wishes allow.

    Raises UnsupportedModel, BadModelFile, BadSetting or NotEnoughMemory.
    """
    if wishes.backend == "cuda" or (wishes.backend == "auto" and wishes.device.type == "cuda"):
        from appliance.runtime.tensor_loading import load_cuda, why_not_cuda

        trouble = why_not_cuda(wishes.device)
        if trouble is None:
            return load_cuda(file, wishes, report)
        if wishes.backend == "cuda":
            raise NoUsableGpu(
                f"--backend cuda cannot be used: {trouble}. Without a GPU: --backend auto", param="backend"
            )
        logger.warning("using the eager backend, which is several times slower: %s", trouble)
    if wishes.backend == "cpu" and wishes.device.type != "cpu":
        raise BadSetting(f"--backend cpu does not run on --device {wishes.device}", param="backend")
    takes_native = wishes.backend == "cpu" or (
        wishes.backend == "auto" and wishes.precision not in BITSANDBYTES
    )
    if takes_native and wishes.device.type == "cpu":
        try:
            return _load_native(file, wishes, report)
        except cpu_loading.NotNative as reason:
            if wishes.backend == "cpu":
                raise not_on_cpu(reason) from reason
            logger.warning("using the eager backend, which is several times slower: %s", reason)
    from appliance.runtime.tensor_loading import load_eager

    return load_eager(file, wishes, report)


def not_on_cpu(reason: cpu_loading.NotNative) -> BadSetting:
    """Return what is told where the CPU backend is asked for by name."""
    return BadSetting(f"--backend cpu cannot run this: {reason}", param="backend")


def _load_native(file: ModelFile, wishes: LoadWishes, report: Report) -> LoadedBackend:
    # Before anything that takes time: a file that cannot be run is refused at once.
    _, config = read_config(file, wishes.served_context, wishes.rope)
    check_names(wishes.precision_map, config.num_layers)
    plan = cpu_loading.plan_native(file, wishes.precision, wishes.kv_dtype, wishes.precision_map)
    weights = SizedWeights(plan.precision, plan.weights_bytes)
    int8_layout = cpu_kv_layout(config, KVType.INT8)
    require_room(file, weights, plan.narrower, wishes.free_bytes, least_free(int8_layout, config))
    report("preparing the CPU engine, once", None)
    library = cpu_loading.open_library(wishes.library_folder)
    backend, config = cpu_loading.load_native(
        file,
        library,
        plan,
        activations=_ACTIVATIONS[wishes.activations],
        num_threads=wishes.num_threads,
        max_tokens=wishes.step_tokens,
        served_context=wishes.served_context,
        rope=wishes.rope,
        progress=lambda share: report(f"loading {file.path.name}", share),
    )
    return LoadedBackend(
        backend=backend,
        config=config,
        backend_name=f"cpu ({backend.level})",
        precision=plan.precision,
        kv_dtype=plan.kv_dtype,
        weights_bytes=backend.weights_bytes,
        int8_layout=int8_layout,
        narrower=plan.narrower,
    )


def least_free(layout: KVLayout, config: ModelConfig) -> int:
    """Return the bytes that must be free beside the weights for the smallest useful pool."""
    demand = KVDemand(
        layout=replace(layout, dtype=KVType.INT8),
        device_type="cpu",
        num_layers=config.num_layers,
        context_length=config.context_length,
        max_sequences=1,
        free_bytes=0,
    )
    return demand.free_bytes_for(demand.fewest_blocks)


def require_room(
    file: ModelFile,
    weights: SizedWeights,
    narrower: tuple[SizedWeights, ...],
    free_bytes: int,
    least_free_bytes: int,
) -> None:
    """Raise NotEnoughMemory, with a remedy, where the weights would not fit.

    A remedy leaves `least_free_bytes` besides.
    """
    if weights.num_bytes + _LOADING_SLACK_BYTES <= free_bytes:
        return
    raise NotEnoughMemory(
        too_large(
            file.path.name,
            weights,
            narrower,
            place=f"{human_size(free_bytes)} are free",
            room_bytes=free_bytes - _LOADING_SLACK_BYTES - least_free_bytes,
            num_parameters=num_parameters(file),
        )
        + ", or close other programs"
    )


def num_parameters(file: ModelFile) -> int:
    """Of all tensors in the file."""
    return sum(tensor.num_elements for tensor in file.tensors.values())
