"""The shape that GGUF files of all architectures describe with the same keys. Opens no file."""

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Metadata, TensorFacts
from appliance.model.config import ExpertConfig, ModelConfig, RopeConfig, RopeScaling
from appliance.model.rope_frequencies import long_rope_attention_factor, yarn_attention_factor

_ALL_FACTORS, _LONG_FACTORS, _SHORT_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
# Tensors that are read for the shape, not for the weights.
ROPE_VECTORS = (_ALL_FACTORS, _LONG_FACTORS, _SHORT_FACTORS)


def base_from_gguf(name: str, metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    """Fill what is common to all: sizes, norms, one RoPE for all layers, no windows, biases where they are.

    Raises BadModelFile where a key is missing, UnsupportedModel for unknown scaling.
    """
    num_heads = metadata.metadata_int(f"{name}.attention.head_count")
    hidden_size = metadata.metadata_int(f"{name}.embedding_length")
    head_size = metadata.metadata_int(f"{name}.attention.key_length", hidden_size // max(num_heads, 1))
    num_layers = metadata.metadata_int(f"{name}.block_count")
    experts = _experts(name, metadata)
    inner = metadata.metadata_int(
        f"{name}.feed_forward_length", experts.intermediate_size if experts else None
    )
    return ModelConfig(
        architecture=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=inner,
        num_heads=num_heads,
        num_kv_heads=metadata.metadata_int(f"{name}.attention.head_count_kv", num_heads),
        head_size=head_size,
        vocab_size=facts.vocab_size,
        context_length=metadata.metadata_int(f"{name}.context_length"),
        norm_eps=metadata.metadata_float(f"{name}.attention.layer_norm_rms_epsilon"),
        ropes=(rope_from_gguf(name, metadata, facts, head_size),) * num_layers,
        has_qkv_bias="blk.0.attn_q.bias" in facts.names,
        has_output_bias="blk.0.attn_output.bias" in facts.names,
        has_feed_forward_bias="blk.0.ffn_down.bias" in facts.names,
        ties_embeddings="output.weight" not in facts.names,
        experts=experts,
    )


def rope_from_gguf(name: str, metadata: Metadata, facts: TensorFacts, head_size: int) -> RopeConfig:
    """Read the RoPE that all layers share. Raises UnsupportedModel for unknown scaling."""
    prefix = f"{name}.rope.scaling"
    scaling = _scaling(metadata.metadata_str(f"{prefix}.type", RopeScaling.NONE), facts)
    factor = metadata.metadata_float(f"{prefix}.factor", 1.0)
    context = metadata.metadata_int(f"{name}.context_length")
    original = metadata.metadata_int(f"{prefix}.original_context_length", context)
    attention_factor = 1.0
    if scaling is RopeScaling.YARN:
        attention_factor = yarn_attention_factor(factor)
    elif scaling is RopeScaling.LONG_ROPE:
        attention_factor = long_rope_attention_factor(context / max(1, original), original)
        attention_factor = metadata.metadata_float(f"{prefix}.attn_factor", attention_factor)
    return RopeConfig(
        theta=metadata.metadata_float(f"{name}.rope.freq_base", 10_000.0),
        rotary_size=metadata.metadata_int(f"{name}.rope.dimension_count", head_size),
        scaling=scaling,
        scaling_factor=factor,
        original_context_length=original,
        frequency_factors=_frequency_factors(facts, original, context),
        attention_factor=attention_factor,
        beta_slow=metadata.metadata_float(f"{prefix}.yarn_beta_slow", 1.0),
        beta_fast=metadata.metadata_float(f"{prefix}.yarn_beta_fast", 32.0),
    )


def _scaling(name: str, facts: TensorFacts) -> RopeScaling:
    if _LONG_FACTORS in facts.names:
        return RopeScaling.LONG_ROPE
    # Llama 3's is in a tensor of factors; the word alone would lack its bounds.
    known = [scaling for scaling in RopeScaling if scaling is not RopeScaling.LLAMA3]
    if name not in known:
        raise UnsupportedModel(f"the RoPE scaling '{name}' is unknown; known are {', '.join(known)}")
    return RopeScaling(name)


def _frequency_factors(facts: TensorFacts, original: int, context: int) -> tuple[float, ...] | None:
    if _LONG_FACTORS not in facts.names:
        return facts.vectors.get(_ALL_FACTORS)
    is_long = (facts.served_context or context) > original
    return facts.vectors.get(_LONG_FACTORS if is_long else _SHORT_FACTORS)


def _experts(name: str, metadata: Metadata) -> ExpertConfig | None:
    num_experts = metadata.metadata_int(f"{name}.expert_count", 0)
    if num_experts == 0:
        return None
    if metadata.metadata_int(f"{name}.expert_shared_count", 0):
        raise UnsupportedModel("experts that every token goes through are not supported yet")
    key = f"{name}.expert_feed_forward_length"
    has_own_size = metadata.metadata_int(key, 0) > 0
    return ExpertConfig(
        num_experts=num_experts,
        num_active=metadata.metadata_int(f"{name}.expert_used_count"),
        intermediate_size=metadata.metadata_int(key if has_own_size else f"{name}.feed_forward_length"),
        normalizes_weights=metadata.metadata_bool(f"{name}.expert_weights_norm", True),
    )
