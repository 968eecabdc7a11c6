"""A Hugging Face model as the GGUF file that the usual converter makes of it. Knows no reader of ours.

Tensor names come from the `gguf` library's own table.
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from formats.gguf_builder import Value, write_gguf

Array = np.ndarray

_NAMES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3",
    "smollm3": "smollm3", "olmo2": "olmo2", "granite": "granite",
}  # fmt: skip
_PERMUTED = ("llama", "smollm3", "granite")


def write_converted(path: Path, config: dict[str, Any], weights: dict[str, Array]) -> Path:
    """Write the file; matrices as F32."""
    name = _NAMES[config["model_type"]]
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    table = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for key, array in weights.items():
        found = re.match(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", key)
        if found:
            merged = f"{found[1]}.{found[3]}.weight"
            experts.setdefault(merged, {})[int(found[2])] = array
        else:
            tensors[_renamed(table, key)] = _stored(name, key, array, config)
    for key, parts in experts.items():
        tensors[_renamed(table, key)] = np.stack([parts[i] for i in range(len(parts))])
    return write_gguf(path, _metadata(name, config), tensors | _rope_factors(name, config))


def _renamed(table: Any, key: str) -> str:
    name = table.get_name(key, try_suffixes=(".weight", ".bias"))
    assert name is not None, f"the gguf library has no name for {key}"
    return str(name)


def _stored(name: str, key: str, array: Array, config: dict[str, Any]) -> Array:
    if name.startswith("gemma") and key.endswith("norm.weight"):
        return array + 1
    if name in _PERMUTED and ("q_proj" in key or "k_proj" in key):
        heads = config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"]
        halves = array.reshape(heads, 2, -1, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    return array


def _metadata(name: str, config: dict[str, Any]) -> dict[str, Value]:
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    metadata: dict[str, Value] = {
        "general.architecture": name,
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.key_length": head_size,
        f"{name}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{name}.rope.dimension_count": int(head_size * config.get("partial_rotary_factor", 1.0)),
        f"{name}.rope.freq_base": float(config.get("rope_theta") or _THETAS.get(config["model_type"], 1e4)),
    }
    renamed = {
        "sliding_window": "attention.sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "num_experts": "expert_count",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "original_max_position_embeddings": "rope.scaling.original_context_length",
    }
    metadata |= {f"{name}.{to}": config[key] for key, to in renamed.items() if config.get(key) is not None}
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        metadata[f"{name}.rope.scaling.type"] = kind
        metadata[f"{name}.rope.scaling.factor"] = float(scaling["factor"])
    if kind == "yarn":
        original = scaling["original_max_position_embeddings"]
        metadata[f"{name}.rope.scaling.original_context_length"] = original
    return metadata


_THETAS = {"mixtral": 1e6, "smollm3": 2e6}


def _rope_factors(name: str, config: dict[str, Any]) -> dict[str, Array]:
    scaling = config.get("rope_scaling") or {}
    if "long_factor" in scaling:
        return {
            f"rope_factors_{length}.weight": np.array(scaling[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if scaling.get("rope_type") != "llama3":
        return {}
    size = config["head_dim"]
    wavelengths = 2 * np.pi * config["rope_theta"] ** (np.arange(0, size, 2) / size)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    factors = 1 / (kept + (1 - kept) / scaling["factor"])
    return {"rope_freqs.weight": factors.astype(np.float32)}
