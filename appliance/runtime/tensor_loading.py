"""Loads the backends that run on torch: the GPU's, and the plain one. Chosen in loading.py."""

import logging

import torch

from appliance.errors import NotEnoughMemory
from appliance.precision_map import check_names
from appliance.runtime import cuda_loading
from appliance.runtime.backend import EagerBackend, eager_kv_layout
from appliance.runtime.bitsandbytes_packing import COST_ON_A_CPU, bitsandbytes_packing
from appliance.runtime.checkpoint import ModelFile, read_config
from appliance.runtime.device import Device
from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from appliance.runtime.loading import (
    LoadedBackend,
    LoadWishes,
    Report,
    least_free,
    num_parameters,
    require_room,
)
from appliance.runtime.precision import kv_dtype, weight_dtype
from appliance.runtime.precision_names import BITSANDBYTES, INT8
from appliance.runtime.weight_packing import Packing, int8_packing
from appliance.runtime.weights import WeightLoader
from appliance.runtime.weights_room import SizedWeights, narrower_than
from kernels.tables import reference_ops

logger = logging.getLogger(__name__)


def why_not_cuda(device: Device) -> str | None:
    """Return what keeps the device from running our kernels; None for nothing."""
    return why_no_gpu(read_gpu(torch.device(str(device))))


def load_cuda(file: ModelFile, wishes: LoadWishes, report: Report) -> LoadedBackend:
    """Load onto a GPU. Raises what `load_backend` raises."""
    device = torch.device(str(wishes.device) if wishes.device.type == "cuda" else "cuda")
    torch.set_num_threads(wishes.num_threads)
    architecture, config = read_config(file, wishes.served_context, wishes.rope)
    check_names(wishes.precision_map, config.num_layers)
    demands = cuda_loading.demands_of(wishes, config)
    plan = cuda_loading.plan_cuda(file, config, demands, read_gpu(torch.device(str(wishes.device))))
    loader = WeightLoader(
        file,
        dtype=plan.dtype,
        device=device,
        progress=lambda share: report(f"loading {file.path.name}", share),
        packing=plan.packing,
        precision_map=wishes.precision_map,
    )
    try:
        weights = loader.load(architecture, config)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(cuda_loading.TAKEN_MEANWHILE) from error
    report("compiling kernels and recording decode steps", None)
    backend, workspace_bytes = cuda_loading.open_backend(config, weights, plan, demands, wishes.kernel_folder)
    return LoadedBackend(
        backend=backend,
        config=config,
        backend_name="cuda",
        precision=plan.precision,
        kv_dtype=plan.kv_name,
        weights_bytes=plan.weights_bytes,
        workspace_bytes=workspace_bytes,
        narrower=plan.narrower,
        reserve_bytes=plan.reserve_bytes,
    )


def load_eager(file: ModelFile, wishes: LoadWishes, report: Report) -> LoadedBackend:
    """Load for plain torch, on any device. Raises what `load_backend` raises."""
    device = torch.device(str(wishes.device))
    torch.set_num_threads(wishes.num_threads)
    architecture, config = read_config(file, wishes.served_context, wishes.rope)
    check_names(wishes.precision_map, config.num_layers)
    precision, dtype = weight_dtype(wishes.precision, device)
    packing = _eager_packing(precision, wishes, dtype)
    kv_name, kv_type = kv_dtype(wishes.kv_dtype, precision if packing is None else "bf16")
    needed_bytes = dtype.itemsize * num_parameters(file)
    weights = SizedWeights(precision, needed_bytes)
    narrower = narrower_than(weights, [SizedWeights("bf16", 2 * num_parameters(file))])
    layout = eager_kv_layout(config, kv_type)
    require_room(file, weights, narrower, wishes.free_bytes, least_free(layout, config))
    loader = WeightLoader(
        file,
        dtype=dtype,
        device=device,
        packing=packing,
        precision_map=wishes.precision_map,
        progress=lambda share: report(f"loading {file.path.name}", share),
    )
    if precision in BITSANDBYTES and wishes.device.type == "cpu":
        cost = COST_ON_A_CPU[precision]
        logger.warning("--precision %s runs slowly on a CPU: SmolLM2-135M took %s", precision, cost)
    loaded = loader.load(architecture, config)
    backend = EagerBackend(config, loaded, reference_ops(), layout)
    return LoadedBackend(
        backend=backend,
        config=config,
        backend_name="eager",
        precision=precision,
        kv_dtype=kv_name,
        weights_bytes=loaded.num_bytes,
        narrower=narrower,
    )


def _eager_packing(precision: str, wishes: LoadWishes, dtype: torch.dtype) -> Packing | None:
    """What makes matrices of this precision; None for a plain type."""
    # A CPU multiplies float32 as fast as 16 bits, and rounds nothing on the way.
    activation_dtype = torch.float32 if wishes.device.type == "cpu" else dtype
    if precision in BITSANDBYTES:
        return bitsandbytes_packing(precision, activation_dtype)
    if precision in INT8:
        return int8_packing(activation_dtype, takes_int8_tokens=wishes.activations == "int8")
    return None
