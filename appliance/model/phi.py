"""Phi-3 and Phi-4-mini: fused matrices in the file, RoPE on part of a head, LongRoPE, a window."""

from dataclasses import replace

from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ModelConfig
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf, with_windows
from appliance.model.tensor_names import GGUF_NAMES, HF_NAMES, Slot, renamed


def _from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    """A window of 0 says that there is none."""
    shape = base_from_gguf("phi3", metadata, facts)
    window = metadata.metadata_int("phi3.attention.sliding_window", 0) or None
    return replace(shape, windows=(window,) * shape.num_layers)


def _from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    shape = base_from_hf("phi3", config.with_defaults(_HF_DEFAULTS), facts)
    window = config.get_int("sliding_window") if config.has("sliding_window") else None
    return with_windows(shape, config, lambda _: True, window)


_HF_DEFAULTS = {"rms_norm_eps": 1e-5}
_QKV, _GATE_UP = "model.layers.{layer}.self_attn.qkv_proj", "model.layers.{layer}.mlp.gate_up_proj"
PHI3 = Architecture(
    name="phi3",
    model_types=("phi3",),
    from_gguf=_from_gguf,
    from_hf=_from_hf,
    gguf_names=renamed(
        GGUF_NAMES,
        {
            **dict.fromkeys((Slot.QUERY, Slot.KEY, Slot.VALUE), "blk.{layer}.attn_qkv"),
            **dict.fromkeys((Slot.GATE, Slot.UP), "blk.{layer}.ffn_up"),
        },
    ),
    hf_names=renamed(
        HF_NAMES,
        {
            **dict.fromkeys((Slot.QUERY, Slot.KEY, Slot.VALUE), _QKV),
            **dict.fromkeys((Slot.GATE, Slot.UP), _GATE_UP),
        },
    ),
)
