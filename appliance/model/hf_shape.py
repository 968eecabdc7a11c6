"""The shape that most config.json files describe in the same words, both old and new ones. Opens no file."""

from collections.abc import Callable
from dataclasses import replace

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.model.architectures import TensorFacts
from appliance.model.config import Activation, ModelConfig, RopeConfig, RopeScaling
from appliance.model.hf_config import HFConfig
from appliance.model.rope_frequencies import long_rope_attention_factor, yarn_attention_factor

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}
_SCALINGS = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "dynamic": RopeScaling.DYNAMIC,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
    "longrope": RopeScaling.LONG_ROPE,
    "su": RopeScaling.LONG_ROPE,
}


def base_from_hf(name: str, config: HFConfig, facts: TensorFacts) -> ModelConfig:
    """Fill what is common to all: sizes, norms, one RoPE for all layers, no windows, biases where flagged.

    Raises BadModelFile or UnsupportedModel naming the key.
    """
    num_layers, num_heads = config.get_int("num_hidden_layers"), config.get_int("num_attention_heads")
    head_size = head_size_of(config)
    rope = rope_from_hf(rope_parameters(config), config, facts)
    return ModelConfig(
        architecture=name,
        num_layers=num_layers,
        hidden_size=config.get_int("hidden_size"),
        intermediate_size=config.get_int("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.get_int("num_key_value_heads", num_heads),
        head_size=head_size,
        vocab_size=facts.vocab_size,
        context_length=_context_length(config, rope),
        norm_eps=config.get_float("rms_norm_eps", 1e-6),
        ropes=(rope,) * num_layers,
        activation=_activation(config),
        has_qkv_bias=config.get_bool("attention_bias", False),
        has_output_bias=config.get_bool("attention_bias", False),
        has_feed_forward_bias=config.get_bool("mlp_bias", False),
        ties_embeddings=config.get_bool("tie_word_embeddings", False),
    )


def head_size_of(config: HFConfig) -> int:
    return config.get_int(
        "head_dim", config.get_int("hidden_size") // max(1, config.get_int("num_attention_heads"))
    )


def with_windows(
    shape: ModelConfig, config: HFConfig, is_local: Callable[[int], bool], window: int | None
) -> ModelConfig:
    """Give the window to the layers that `layer_types` calls sliding; without that list, to `is_local`'s."""
    kinds = config.get_list("layer_types")
    if kinds is not None and len(kinds) != shape.num_layers:
        raise BadModelFile(
            f"config.json: layer_types has {len(kinds)} items and there are {shape.num_layers} layers"
        )
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"config.json: the layer type '{kind}' is not supported yet")
    local = [
        kinds[layer] == "sliding_attention" if kinds is not None else is_local(layer)
        for layer in range(shape.num_layers)
    ]
    return replace(shape, windows=tuple(window if is_sliding else None for is_sliding in local))


def rope_parameters(config: HFConfig, layer_kind: str = "full_attention") -> HFConfig:
    """Return RoPE's own object: `rope_parameters` of new files (by layer kind where it is so), or what old
    files spread over `rope_theta`, `rope_scaling` and others."""
    new = config.get_object("rope_parameters")
    if new is not None:
        return (new.get_object(layer_kind) or new).with_defaults(_spread(config))
    old = config.get_object("rope_scaling")
    return (old or HFConfig({})).with_defaults(_spread(config))


def rope_from_hf(rope: HFConfig, config: HFConfig, facts: TensorFacts) -> RopeConfig:
    """Read one RoPE. Raises UnsupportedModel for a scaling that is not known."""
    name = rope.get_str("rope_type", rope.get_str("type", "default"))
    if name not in _SCALINGS:
        raise UnsupportedModel(f"the RoPE scaling '{name}' is unknown; known are {', '.join(_SCALINGS)}")
    scaling = _SCALINGS[name]
    plain = RopeConfig(
        theta=rope.get_float("rope_theta", 10_000.0),
        rotary_size=int(head_size_of(config) * rope.get_float("partial_rotary_factor", 1.0)),
        scaling=scaling,
    )
    if scaling in (RopeScaling.NONE, RopeScaling.DYNAMIC):
        return plain
    if scaling is RopeScaling.LINEAR:
        return replace(plain, scaling_factor=rope.get_float("factor"))
    if scaling is RopeScaling.LLAMA3:
        return replace(
            plain,
            scaling_factor=rope.get_float("factor"),
            original_context_length=_original_context(rope, config),
            low_frequency=rope.get_float("low_freq_factor", 1.0),
            high_frequency=rope.get_float("high_freq_factor", 4.0),
        )
    return _yarn(plain, rope, config) if scaling is RopeScaling.YARN else _long(plain, rope, config, facts)


def _yarn(plain: RopeConfig, rope: HFConfig, config: HFConfig) -> RopeConfig:
    original = _original_context(rope, config)
    factor = rope.get_float("factor", config.get_int("max_position_embeddings") / max(1, original))
    if rope.has("mscale") or rope.has("mscale_all_dim"):
        raise UnsupportedModel("YaRN with 'mscale' is not supported yet")
    return replace(
        plain,
        scaling_factor=factor,
        original_context_length=original,
        attention_factor=rope.get_float("attention_factor", yarn_attention_factor(factor)),
        beta_slow=rope.get_float("beta_slow", 1.0),
        beta_fast=rope.get_float("beta_fast", 32.0),
        truncates_range=rope.get_bool("truncate", True),
    )


def _long(plain: RopeConfig, rope: HFConfig, config: HFConfig, facts: TensorFacts) -> RopeConfig:
    original, most = _original_context(rope, config), config.get_int("max_position_embeddings")
    is_long = (facts.served_context or most) > original
    factor = rope.get_float("factor", most / max(1, original))
    return replace(
        plain,
        original_context_length=original,
        frequency_factors=rope.get_floats("long_factor" if is_long else "short_factor"),
        attention_factor=rope.get_float("attention_factor", long_rope_attention_factor(factor, original)),
    )


def _original_context(rope: HFConfig, config: HFConfig) -> int:
    key = "original_max_position_embeddings"
    return rope.get_int(key, config.get_int(key, config.get_int("max_position_embeddings")))


def _context_length(config: HFConfig, rope: RopeConfig) -> int:
    """Tokens that the model is for. Files that add YaRN keep the length from before it."""
    most = config.get_int("max_position_embeddings")
    if rope.scaling is RopeScaling.YARN and rope.original_context_length is not None:
        return max(most, int(rope.scaling_factor * rope.original_context_length))
    return most


def _spread(config: HFConfig) -> dict[str, object]:
    keys = ("rope_theta", "partial_rotary_factor")
    return {key: config.values[key] for key in keys if config.has(key)}


def _activation(config: HFConfig) -> Activation:
    name = config.get_str("hidden_activation", config.get_str("hidden_act", "silu"))
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"the activation '{name}' is unknown; known are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]
