"""Qwen2 and 2.5 (biases on queries, keys, values), Qwen3 (norms on query and key heads), Qwen3-MoE."""

from dataclasses import replace

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ExpertConfig, ModelConfig, QKNorm
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf, with_windows


def _qwen2_from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    return replace(base_from_gguf("qwen2", metadata, facts), has_qkv_bias=True)


def _qwen3_from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    return replace(base_from_gguf("qwen3", metadata, facts), qk_norm=QKNorm.HEAD)


def _qwen3_moe_from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    return replace(base_from_gguf("qwen3moe", metadata, facts), qk_norm=QKNorm.HEAD)


def _from_hf(name: str, config: HFConfig, facts: TensorFacts) -> ModelConfig:
    """The first `max_window_layers` layers see everything; windows are off in the published models."""
    shape = base_from_hf(name, config, facts)
    is_sliding = config.get_bool("use_sliding_window", False) and config.has("sliding_window")
    window = config.get_int("sliding_window") if is_sliding else None
    first_local = config.get_int("max_window_layers", 28)
    return with_windows(shape, config, lambda layer: layer >= first_local, window)


def _qwen2_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    return replace(_from_hf("qwen2", config, facts), has_qkv_bias=True)


def _qwen3_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    own = config.with_defaults({"head_dim": 128})
    return replace(_from_hf("qwen3", own, facts), qk_norm=QKNorm.HEAD)


def _qwen3_moe_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    if config.get_list("mlp_only_layers") or config.get_int("decoder_sparse_step", 1) != 1:
        raise UnsupportedModel("a mixture of experts in only some of the layers is not supported yet")
    experts = ExpertConfig(
        num_experts=config.get_int("num_experts"),
        num_active=config.get_int("num_experts_per_tok"),
        intermediate_size=config.get_int("moe_intermediate_size"),
        normalizes_weights=config.get_bool("norm_topk_prob", False),
    )
    # Here every layer has the window, where there is one.
    own = config.with_defaults({"max_window_layers": 0})
    return replace(_from_hf("qwen3moe", own, facts), qk_norm=QKNorm.HEAD, experts=experts)


QWEN2 = Architecture(name="qwen2", model_types=("qwen2",), from_gguf=_qwen2_from_gguf, from_hf=_qwen2_from_hf)
QWEN3 = Architecture(name="qwen3", model_types=("qwen3",), from_gguf=_qwen3_from_gguf, from_hf=_qwen3_from_hf)
QWEN3_MOE = Architecture(
    name="qwen3moe", model_types=("qwen3_moe",), from_gguf=_qwen3_moe_from_gguf, from_hf=_qwen3_moe_from_hf
)
