"""Llama and what is shaped like it, SmolLM2 among them."""

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ModelConfig, RopeConfig, RopeScaling


def configure(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    """Read the shape.

    Raises BadModelFile where a key is missing or contradicts another, UnsupportedModel for unknown scaling.
    """
    num_heads = metadata.metadata_int("llama.attention.head_count")
    hidden_size = metadata.metadata_int("llama.embedding_length")
    head_size = metadata.metadata_int("llama.attention.key_length", hidden_size // max(num_heads, 1))
    num_layers = metadata.metadata_int("llama.block_count")
    rope = RopeConfig(
        theta=metadata.metadata_float("llama.rope.freq_base", 10_000.0),
        rotary_size=metadata.metadata_int("llama.rope.dimension_count", head_size),
        scaling=_scaling(metadata.metadata_str("llama.rope.scaling.type", RopeScaling.NONE)),
        scaling_factor=metadata.metadata_float("llama.rope.scaling.factor", 1.0),
        frequency_factors=facts.frequency_factors,
    )
    return ModelConfig(
        architecture="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=metadata.metadata_int("llama.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=metadata.metadata_int("llama.attention.head_count_kv", num_heads),
        head_size=head_size,
        vocab_size=facts.vocab_size,
        context_length=metadata.metadata_int("llama.context_length"),
        norm_eps=metadata.metadata_float("llama.attention.layer_norm_rms_epsilon"),
        ropes=(rope,) * num_layers,
        has_qkv_bias=facts.has_qkv_bias,
        ties_embeddings=facts.ties_embeddings,
    )


def _scaling(name: str) -> RopeScaling:
    if name not in list(RopeScaling):
        raise UnsupportedModel(f"the RoPE scaling '{name}' is unknown; known are {', '.join(RopeScaling)}")
    return RopeScaling(name)


LLAMA = Architecture(name="llama", configure=configure, permutes_qk=True)
