"""What each tensor of a network is called in either kind of file. Knows names only."""

from collections.abc import Mapping
from enum import StrEnum


class Slot(StrEnum):
    """A tensor's place in the network."""

    EMBEDDING = "embedding"
    HEAD = "head"
    FINAL_NORM = "final_norm"
    ATTENTION_PRE_NORM = "attention_pre_norm"
    ATTENTION_POST_NORM = "attention_post_norm"
    FEED_FORWARD_PRE_NORM = "feed_forward_pre_norm"
    FEED_FORWARD_POST_NORM = "feed_forward_post_norm"
    QUERY_NORM = "query_norm"
    KEY_NORM = "key_norm"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "output"
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ROUTER = "router"
    EXPERT_GATE = "expert_gate"
    EXPERT_UP = "expert_up"
    EXPERT_DOWN = "expert_down"


# Without ".weight" or ".bias". Slots that share a name share a tensor, their rows in the order of Slot.
# An expert's name without {expert} is one tensor of all of them, in turn.
TensorNames = Mapping[Slot, str]

GGUF_NAMES: TensorNames = {
    Slot.EMBEDDING: "token_embd",
    Slot.HEAD: "output",
    Slot.FINAL_NORM: "output_norm",
    Slot.ATTENTION_PRE_NORM: "blk.{layer}.attn_norm",
    Slot.ATTENTION_POST_NORM: "blk.{layer}.post_attention_norm",
    Slot.FEED_FORWARD_PRE_NORM: "blk.{layer}.ffn_norm",
    Slot.FEED_FORWARD_POST_NORM: "blk.{layer}.post_ffw_norm",
    Slot.QUERY_NORM: "blk.{layer}.attn_q_norm",
    Slot.KEY_NORM: "blk.{layer}.attn_k_norm",
    Slot.QUERY: "blk.{layer}.attn_q",
    Slot.KEY: "blk.{layer}.attn_k",
    Slot.VALUE: "blk.{layer}.attn_v",
    Slot.OUTPUT: "blk.{layer}.attn_output",
    Slot.GATE: "blk.{layer}.ffn_gate",
    Slot.UP: "blk.{layer}.ffn_up",
    Slot.DOWN: "blk.{layer}.ffn_down",
    Slot.ROUTER: "blk.{layer}.ffn_gate_inp",
    Slot.EXPERT_GATE: "blk.{layer}.ffn_gate_exps",
    Slot.EXPERT_UP: "blk.{layer}.ffn_up_exps",
    Slot.EXPERT_DOWN: "blk.{layer}.ffn_down_exps",
}

HF_NAMES: TensorNames = {
    Slot.EMBEDDING: "model.embed_tokens",
    Slot.HEAD: "lm_head",
    Slot.FINAL_NORM: "model.norm",
    Slot.ATTENTION_PRE_NORM: "model.layers.{layer}.input_layernorm",
    Slot.ATTENTION_POST_NORM: "model.layers.{layer}.post_attention_layernorm",
    Slot.FEED_FORWARD_PRE_NORM: "model.layers.{layer}.post_attention_layernorm",
    Slot.FEED_FORWARD_POST_NORM: "model.layers.{layer}.post_feedforward_layernorm",
    Slot.QUERY_NORM: "model.layers.{layer}.self_attn.q_norm",
    Slot.KEY_NORM: "model.layers.{layer}.self_attn.k_norm",
    Slot.QUERY: "model.layers.{layer}.self_attn.q_proj",
    Slot.KEY: "model.layers.{layer}.self_attn.k_proj",
    Slot.VALUE: "model.layers.{layer}.self_attn.v_proj",
    Slot.OUTPUT: "model.layers.{layer}.self_attn.o_proj",
    Slot.GATE: "model.layers.{layer}.mlp.gate_proj",
    Slot.UP: "model.layers.{layer}.mlp.up_proj",
    Slot.DOWN: "model.layers.{layer}.mlp.down_proj",
    Slot.ROUTER: "model.layers.{layer}.mlp.gate",
    Slot.EXPERT_GATE: "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    Slot.EXPERT_UP: "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    Slot.EXPERT_DOWN: "model.layers.{layer}.mlp.experts.{expert}.down_proj",
}


def renamed(names: TensorNames, changes: Mapping[Slot, str]) -> TensorNames:
    """Return the table with some names changed."""
    return {**names, **changes}
