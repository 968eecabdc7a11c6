"""From an open model file to a backend with its weights: checks what fits, chooses, loads."""

from dataclasses import dataclass

import torch

from appliance.errors import NotEnoughMemory
from appliance.formats.gguf import GGUFFile
from appliance.model.config import ModelConfig
from appliance.runtime.backend import Backend, EagerBackend, eager_kv_layout, select_backend
from appliance.runtime.kv_cache import human_size
from appliance.runtime.precision import kv_dtype, weight_dtype
from appliance.runtime.weights import Progress, WeightLoader, read_config
from kernels.tables import reference_ops

# Besides the weights: one chunk on its way, and the allocator's slack.
_LOADING_SLACK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWishes:
    """What the user asked of a load, in the words of the settings."""

    backend: str
    precision: str
    kv_dtype: str
    device: torch.device
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBackend:
    """A backend with its weights, not yet with a KV pool, and what was decided on the way."""

    backend: Backend
    config: ModelConfig
    backend_name: str
    precision: str
    kv_dtype: str
    weights_bytes: int


def load_backend(file: GGUFFile, wishes: LoadWishes, progress: Progress) -> LoadedBackend:
    """Load the weights onto the best backend that the wishes allow.

    Raises UnsupportedModel, BadModelFile, BadSetting or NotEnoughMemory.
    """
    architecture, config = read_config(file)
    backend_name = select_backend(wishes.backend, wishes.device)
    precision, dtype = weight_dtype(wishes.precision, wishes.device)
    kv_name, kv_type = kv_dtype(wishes.kv_dtype, precision)
    needed_bytes = dtype.itemsize * sum(tensor.num_elements for tensor in file.tensors.values())
    if needed_bytes + _LOADING_SLACK_BYTES > wishes.free_bytes:
        raise NotEnoughMemory(_does_not_fit(file, precision, needed_bytes, wishes.free_bytes))
    loader = WeightLoader(file, dtype=dtype, device=wishes.device, progress=progress)
    weights = loader.load(architecture, config)
    backend = EagerBackend(config, weights, reference_ops(), eager_kv_layout(config, kv_type))
    return LoadedBackend(
        backend=backend,
        config=config,
        backend_name=backend_name,
        precision=precision,
        kv_dtype=kv_name,
        weights_bytes=needed_bytes,
    )


def _does_not_fit(file: GGUFFile, precision: str, needed_bytes: int, free_bytes: int) -> str:
    num_parameters = sum(tensor.num_elements for tensor in file.tensors.values())
    remedy = f"close other programs, or choose a model under {free_bytes // 2 / 10**9:.1f} billion parameters"
    if precision == "f32" and num_parameters * 2 < free_bytes:
        remedy = f"--precision bf16 needs {human_size(num_parameters * 2)}"
    return (
        f"'{file.path.name}' needs {human_size(needed_bytes)} as {precision} and {human_size(free_bytes)} "
        f"are free; {remedy}"
    )
