"""Granite 3: a Llama with a multiplier at the embedding, the scores, each residual sum and the logits."""

from dataclasses import replace

from appliance.errors import BadModelFile
from appliance.model.architectures import Architecture, Metadata, TensorFacts
from appliance.model.config import ModelConfig
from appliance.model.gguf_shape import base_from_gguf
from appliance.model.hf_config import HFConfig
from appliance.model.hf_shape import base_from_hf


def _granite(
    shape: ModelConfig, *, embedding: float, attention: float, residual: float, logit_divisor: float
) -> ModelConfig:
    if logit_divisor == 0:
        raise BadModelFile("the logits' divisor is 0")
    return replace(
        shape,
        embedding_scale=embedding,
        attention_scale=attention,
        residual_scale=residual,
        logit_scale=1.0 / logit_divisor,
    )


def _from_gguf(metadata: Metadata, facts: TensorFacts) -> ModelConfig:
    """A factor that the file leaves out is one, the scores' the usual root. `logit_scale` divides."""
    return _granite(
        base_from_gguf("granite", metadata, facts),
        embedding=metadata.metadata_float("granite.embedding_scale", 1.0),
        attention=metadata.metadata_float("granite.attention.scale", 0.0),
        residual=metadata.metadata_float("granite.residual_scale", 1.0),
        logit_divisor=metadata.metadata_float("granite.logit_scale", 1.0),
    )


def _from_hf(config: HFConfig, facts: TensorFacts) -> ModelConfig:
    return _granite(
        base_from_hf("granite", config, facts),
        embedding=config.get_float("embedding_multiplier", 1.0),
        attention=config.get_float("attention_multiplier", 1.0),
        residual=config.get_float("residual_multiplier", 1.0),
        logit_divisor=config.get_float("logits_scaling", 1.0),
    )


GRANITE = Architecture(
    name="granite",
    model_types=("granite",),
    from_gguf=_from_gguf,
    from_hf=_from_hf,
    gguf_permutes_qk=True,
)
