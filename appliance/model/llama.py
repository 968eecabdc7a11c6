"""Llama and what is shaped like it: SmolLM2, Mistral, Mixtral."""

from dataclasses import replace

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ExpertConfig, ModelConfig
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf, with_windows
from appliance.model.tensor_names import HF_NAMES, Slot, renamed


def _from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    shape = base_from_gguf("llama", metadata, facts)
    if shape.experts is not None and "blk.0.ffn_gate.0.weight" in facts.names:
        raise UnsupportedModel(
            "this file holds each expert in tensors of its own, as files did before March 2024; "
            "get a newer conversion of the model"
        )
    return shape


def _llama_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    return base_from_hf("llama", config, facts)


def _mistral_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    shape = base_from_hf("mistral", config, facts)
    window = config.get_int("sliding_window") if config.has("sliding_window") else None
    return with_windows(shape, config, lambda _: True, window)


def _mixtral_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    config = config.with_defaults(_MIXTRAL_DEFAULTS)
    experts = ExpertConfig(
        num_experts=config.get_int("num_local_experts", 8),
        num_active=config.get_int("num_experts_per_tok", 2),
        intermediate_size=config.get_int("intermediate_size"),
    )
    return replace(_mistral_from_hf(config, facts), architecture="mixtral", experts=experts)


_MIXTRAL_DEFAULTS = {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8}
_MIXTRAL_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}"
MIXTRAL_NAMES = renamed(
    HF_NAMES,
    {
        Slot.ROUTER: "model.layers.{layer}.block_sparse_moe.gate",
        Slot.EXPERT_GATE: f"{_MIXTRAL_EXPERT}.w1",
        Slot.EXPERT_UP: f"{_MIXTRAL_EXPERT}.w3",
        Slot.EXPERT_DOWN: f"{_MIXTRAL_EXPERT}.w2",
    },
)
# In GGUF all three are "llama".
LLAMA = Architecture(
    name="llama",
    model_types=("llama",),
    from_gguf=_from_gguf,
    from_hf=_llama_from_hf,
    gguf_permutes_qk=True,
)
MISTRAL = replace(LLAMA, name="mistral", model_types=("mistral",), from_hf=_mistral_from_hf)
MIXTRAL = replace(
    LLAMA, name="mixtral", model_types=("mixtral",), from_hf=_mixtral_from_hf, hf_names=MIXTRAL_NAMES
)
