"""OLMo 2: norms after each block and none before, and one over all query heads and all key heads."""

from dataclasses import replace

from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ModelConfig, NormPlacement, QKNorm
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf


def _olmo2(shape: ModelConfig) -> ModelConfig:
    return replace(shape, norm_placement=NormPlacement.POST, qk_norm=QKNorm.FULL)


def _from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    return _olmo2(base_from_gguf("olmo2", metadata, facts))


def _from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    return _olmo2(base_from_hf("olmo2", config.with_defaults({"rms_norm_eps": 1e-5}), facts))


OLMO2 = Architecture(name="olmo2", model_types=("olmo2",), from_gguf=_from_gguf, from_hf=_from_hf)
