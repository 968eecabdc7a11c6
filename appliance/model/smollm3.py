"""SmolLM3: a Llama in which every fourth layer leaves positions alone."""

from dataclasses import replace

from appliance.errors import BadModelFile
from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ModelConfig
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf, with_windows

_PERIOD = 4
_HF_DEFAULTS = {"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2e6}


def _with_ropes(shape: ModelConfig, turns: list[bool]) -> ModelConfig:
    ropes = zip(shape.ropes, turns, strict=True)
    return replace(shape, ropes=tuple(rope if does_turn else None for rope, does_turn in ropes))


def _from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    shape = base_from_gguf("smollm3", metadata, facts)
    return _with_ropes(shape, [(layer + 1) % _PERIOD != 0 for layer in range(shape.num_layers)])


def _from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    config = config.with_defaults(_HF_DEFAULTS)
    shape = base_from_hf("smollm3", config, facts)
    # Its name notwithstanding, the list holds 1 for a layer that turns.
    period, flags = config.get_int("no_rope_layer_interval", _PERIOD), config.get_list("no_rope_layers")
    if flags is not None and len(flags) != shape.num_layers:
        raise BadModelFile(
            f"config.json: no_rope_layers has {len(flags)} items and there are {shape.num_layers} layers"
        )
    turns = [
        (layer + 1) % period != 0 if flags is None else bool(flags[layer])
        for layer in range(shape.num_layers)
    ]
    is_sliding = config.get_bool("use_sliding_window", False) and config.has("sliding_window")
    window = config.get_int("sliding_window") if is_sliding else None
    return with_windows(_with_ropes(shape, turns), config, lambda layer: not turns[layer], window)


SMOLLM3 = Architecture(
    name="smollm3",
    model_types=("smollm3",),
    from_gguf=_from_gguf,
    from_hf=_from_hf,
    gguf_permutes_qk=True,
)
