"""Small networks of every architecture as config.json describes them, in old files' words and new ones'.

Windows, original contexts and periods are so short that the tokens cross them.
"""

from typing import Any

NUM_TOKENS = 50
SIZES = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_LONG = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0]
_SHORT = [1.0, 1.02, 1.1, 1.2, 1.3, 1.4]


def _config(model_type: str, **changes: Any) -> dict[str, Any]:
    config = SIZES | {"model_type": model_type} | changes
    return {key: value for key, value in config.items() if value is not None}


def _phi(**changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "rope_scaling": {"type": "longrope", "long_factor": _LONG, "short_factor": _SHORT},
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 24,
        "head_dim": None,
        "hidden_size": 64,
        "tie_word_embeddings": False,
    }
    return _config("phi3", **(own | changes))


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_GEMMA = {
    "query_pre_attn_scalar": 24, "sliding_window": 7, "num_hidden_layers": 3,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}

CASES: dict[str, dict[str, Any]] = {
    "llama 2": _config("llama", head_dim=None, hidden_size=64, num_key_value_heads=4),
    "llama with biases": _config("llama", attention_bias=True, mlp_bias=True),
    "llama 3": _config("llama", rope_theta=500_000.0, rope_scaling=_LLAMA3, tie_word_embeddings=True),
    "llama, linear": _config("llama", rope_scaling={"type": "linear", "factor": 4.0}),
    "llama, dynamic": _config("llama", rope_scaling={"type": "dynamic", "factor": 4.0}),
    "llama, new words": _config("llama", rope_parameters=_LLAMA3 | {"rope_theta": 5_000.0}),
    "mistral": _config("mistral", sliding_window=7),
    "mixtral": _config("mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    "qwen2": _config("qwen2", rope_theta=1e6, rope_scaling=_YARN, tie_word_embeddings=True),
    "qwen2, a window": _config(
        "qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=1, num_hidden_layers=3
    ),
    "qwen3": _config("qwen3", head_dim=32, num_key_value_heads=1, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3, yarn": _config("qwen3", rope_parameters=_YARN | {"rope_theta": 1e6}),
    "qwen3-moe": _config("qwen3_moe", norm_topk_prob=True, **_MOE),
    "qwen3-moe, raw shares": _config("qwen3_moe", norm_topk_prob=False, **_MOE),
    "gemma2": _config("gemma2", attn_logit_softcapping=4.0, final_logit_softcapping=3.0, **_GEMMA),
    "gemma3": _config(
        "gemma3_text",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=2,
        **_GEMMA,
    ),
    "gemma3, new words": _config(
        "gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        **_GEMMA,
    ),
    "phi3, long": _phi(sliding_window=None),
    "phi3, short": _phi(sliding_window=262_144),
    "phi3, a window": _phi(sliding_window=7, rope_scaling=None, partial_rotary_factor=1.0),
    "smollm3": _config("smollm3", no_rope_layer_interval=2, head_dim=None, hidden_size=64),
    "olmo2": _config("olmo2", head_dim=None, hidden_size=64),
    "granite": _config(
        "granite",
        head_dim=None,
        hidden_size=64,
        attention_multiplier=0.13,
        embedding_multiplier=1.7,
        residual_multiplier=0.4,
        logits_scaling=3.0,
        tie_word_embeddings=True,
    ),
}  # fmt: skip
# Up to the original context, where the short factors hold.
NUM_TOKENS_OF = {"phi3, short": 20}
SERVED_CONTEXT_OF = {"phi3, short": 24}


def num_tokens(name: str) -> int:
    return NUM_TOKENS_OF.get(name, NUM_TOKENS)


def positions(name: str) -> list[int]:
    """Where logits are compared: the first, either side of the windows, and some further ones."""
    return [p for p in (0, 6, 7, 19, 33, 48, 49) if p < num_tokens(name)]
