"""What a load would take and leave, from the file's tables alone. Reads no weight."""

from dataclasses import dataclass

from appliance.model.config import ModelConfig
from appliance.precision_map import check_names
from appliance.runtime import cpu_loading
from appliance.runtime.checkpoint import ModelFile, read_config
from appliance.runtime.cpu import cpu_kv_layout
from appliance.runtime.loading import LoadWishes, PoolTerms, least_free, not_on_cpu, require_room
from appliance.runtime.precision_names import BITSANDBYTES
from appliance.runtime.weights_room import SizedWeights
from kernels.kv_layout import KVType


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoad:
    """`free_bytes` are what the weights would leave."""

    config: ModelConfig
    precision: str
    terms: PoolTerms
    free_bytes: int


def expected_load(file: ModelFile, wishes: LoadWishes) -> ExpectedLoad | None:
    """Return what a load would come to; None where the plain backend would serve, whose load is not foreseen.

    Raises what `load_backend` raises before it reads a weight.
    """
    if wishes.device.type == "cuda" and wishes.backend in ("auto", "cuda"):
        return _on_cuda(file, wishes)
    if wishes.device.type == "cpu" and wishes.backend in ("auto", "cpu"):
        return None if wishes.precision in BITSANDBYTES else _on_cpu(file, wishes)
    return None


def _on_cpu(file: ModelFile, wishes: LoadWishes) -> ExpectedLoad | None:
    _, config = read_config(file, wishes.served_context, wishes.rope)
    check_names(wishes.precision_map, config.num_layers)
    try:
        plan = cpu_loading.plan_native(file, wishes.precision, wishes.kv_dtype, wishes.precision_map)
    except cpu_loading.NotNative as reason:
        if wishes.backend == "cpu":
            raise not_on_cpu(reason) from reason
        return None
    int8_layout = cpu_kv_layout(config, KVType.INT8)
    weights = SizedWeights(plan.precision, plan.weights_bytes)
    require_room(file, weights, plan.narrower, wishes.free_bytes, least_free(int8_layout, config))
    terms = PoolTerms(
        layout=cpu_kv_layout(config, plan.kv_type),
        int8_layout=int8_layout,
        kv_dtype=plan.kv_dtype,
        device_type="cpu",
        num_layers=config.num_layers,
        weights_bytes=plan.weights_bytes,
        narrower=plan.narrower,
    )
    free_bytes = wishes.free_bytes - plan.weights_bytes
    return ExpectedLoad(config=config, precision=plan.precision, terms=terms, free_bytes=free_bytes)


def _on_cuda(file: ModelFile, wishes: LoadWishes) -> ExpectedLoad | None:
    import torch

    from appliance.runtime import cuda_loading
    from appliance.runtime.cuda import cuda_kv_layout
    from appliance.runtime.gpu_device import read_gpu, why_no_gpu

    gpu = read_gpu(torch.device(str(wishes.device)))
    if why_no_gpu(gpu) is not None:
        return None
    _, config = read_config(file, wishes.served_context, wishes.rope)
    plan = cuda_loading.plan_cuda(file, config, cuda_loading.demands_of(wishes, config), gpu)
    terms = PoolTerms(
        layout=cuda_kv_layout(config, plan.kv_type),
        kv_dtype=plan.kv_name,
        device_type="cuda",
        num_layers=config.num_layers,
        weights_bytes=plan.weights_bytes,
        workspace_bytes=cuda_loading.EXPECTED_WORKSPACE,
        reserve_bytes=plan.reserve_bytes,
        narrower=plan.narrower,
    )
    free_bytes = gpu.free_bytes - plan.weights_bytes
    return ExpectedLoad(config=config, precision=plan.precision, terms=terms, free_bytes=free_bytes)
