"""Gemma 2 and 3: norms on both sides of a block, scaled embeddings, GeGLU, local layers among global ones.

Gemma 2 caps scores and logits softly; Gemma 3 norms query and key heads, and its local layers turn faster.
"""

from dataclasses import replace

from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import Activation, ModelConfig, NormPlacement, QKNorm, RopeConfig
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf, rope_from_hf, with_windows
from appliance.model.tensor_names import HF_NAMES, Slot, renamed

_LOCAL_THETA = 10_000.0
# One layer in two, or in six, is global: the last of each group.
_GEMMA2_PERIOD, _GEMMA3_PERIOD = 2, 6
# The two largest models alone scale queries by hidden_size / num_heads; GGUF files of old do not say so.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_HF_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}  # fmt: skip
_GEMMA2_DEFAULTS = {
    **_HF_DEFAULTS, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}  # fmt: skip
_GEMMA3_DEFAULTS = {**_HF_DEFAULTS, "max_position_embeddings": 131_072, "rope_theta": 1e6}


def _is_local(layer: int, period: int) -> bool:
    return (layer + 1) % period != 0


def _gemma(shape: ModelConfig, query_scalar: float) -> ModelConfig:
    return replace(
        shape,
        norm_placement=NormPlacement.BOTH,
        activation=Activation.GELU_TANH,
        embedding_scale=shape.hidden_size**0.5,
        attention_scale=query_scalar**-0.5,
    )


def _with_local_rope(shape: ModelConfig, rope: RopeConfig) -> ModelConfig:
    ropes = zip(shape.ropes, shape.windows, strict=True)
    return replace(shape, ropes=tuple(whole if window is None else rope for whole, window in ropes))


def _from_gguf(
    name: str, metadata: Metadata, facts: TensorFacts, *, period: int, window: int, largest: int
) -> ModelConfig:
    shape = base_from_gguf(name, metadata, facts)
    scalar = shape.hidden_size / shape.num_heads if shape.num_layers == largest else shape.head_size
    window = metadata.metadata_int(f"{name}.attention.sliding_window", window)
    windows = tuple(window if _is_local(layer, period) else None for layer in range(shape.num_layers))
    return replace(_gemma(shape, scalar), windows=windows)


def _gemma2_from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    shape = _from_gguf(
        "gemma2", metadata, facts, period=_GEMMA2_PERIOD, window=4096, largest=_GEMMA2_27B_LAYERS
    )
    return replace(
        shape,
        attention_softcap=metadata.metadata_float("gemma2.attn_logit_softcapping", 50.0),
        logit_softcap=metadata.metadata_float("gemma2.final_logit_softcapping", 30.0),
    )


def _gemma3_from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    shape = _from_gguf(
        "gemma3", metadata, facts, period=_GEMMA3_PERIOD, window=1024, largest=_GEMMA3_27B_LAYERS
    )
    theta = metadata.metadata_float("gemma3.rope.freq_base_swa", _LOCAL_THETA)
    local = RopeConfig(theta=theta, rotary_size=shape.head_size)
    return replace(_with_local_rope(shape, local), qk_norm=QKNorm.HEAD)


def _from_hf(name: str, config: HFConfig, facts: TensorFacts, period: int) -> ModelConfig:
    shape = _gemma(base_from_hf(name, config, facts), config.get_float("query_pre_attn_scalar"))
    shape = with_windows(
        shape, config, lambda layer: _is_local(layer, period), config.get_int("sliding_window")
    )
    return replace(
        shape,
        attention_softcap=config.get_optional_float("attn_logit_softcapping"),
        logit_softcap=config.get_optional_float("final_logit_softcapping"),
    )


def _gemma2_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    return _from_hf("gemma2", config.with_defaults(_GEMMA2_DEFAULTS), facts, _GEMMA2_PERIOD)


def _gemma3_from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    config = config.with_defaults(_GEMMA3_DEFAULTS)
    period = config.get_int("sliding_window_pattern", _GEMMA3_PERIOD)
    shape = replace(_from_hf("gemma3", config, facts, period), qk_norm=QKNorm.HEAD)
    parameters = config.get_object("rope_parameters")
    local = parameters.get_object("sliding_attention") if parameters is not None else None
    if local is None:  # older files
        local = HFConfig({"rope_theta": config.get_float("rope_local_base_freq", _LOCAL_THETA)})
    return _with_local_rope(shape, rope_from_hf(local, config, facts))


_NAMES = renamed(HF_NAMES, {Slot.FEED_FORWARD_PRE_NORM: "model.layers.{layer}.pre_feedforward_layernorm"})
GEMMA2 = Architecture(
    name="gemma2",
    model_types=("gemma2",),
    from_gguf=_gemma2_from_gguf,
    from_hf=_gemma2_from_hf,
    hf_names=_NAMES,
    hf_norms_add_one=True,
)
GEMMA3 = Architecture(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    from_gguf=_gemma3_from_gguf,
    from_hf=_gemma3_from_hf,
    hf_names=_NAMES,
    hf_norms_add_one=True,
)
