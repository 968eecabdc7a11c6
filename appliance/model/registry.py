"""The architectures this version runs, by the names that model files give."""

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Architecture
from appliance.model.gemma import GEMMA2, GEMMA3
from appliance.model.granite import GRANITE
from appliance.model.llama import LLAMA, MISTRAL, MIXTRAL
from appliance.model.olmo import OLMO2
from appliance.model.phi import PHI3
from appliance.model.qwen import QWEN2, QWEN3, QWEN3_MOE
from appliance.model.smollm3 import SMOLLM3

ARCHITECTURES = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3, SMOLLM3, OLMO2, GRANITE,
)  # fmt: skip
# In GGUF, Mistral and Mixtral go by the name of Llama.
_BY_GGUF_NAME = {each.name: each for each in ARCHITECTURES if each not in (MISTRAL, MIXTRAL)}
_BY_MODEL_TYPE = {model_type: each for each in ARCHITECTURES for model_type in each.model_types}


def find_architecture(name: str) -> Architecture:
    """Return a GGUF file's architecture. Raises UnsupportedModel listing the known ones."""
    return _find(_BY_GGUF_NAME, name)


def find_hf_architecture(model_type: str) -> Architecture:
    """Return the architecture of a config.json. Raises UnsupportedModel listing the known ones."""
    return _find(_BY_MODEL_TYPE, model_type)


def _find(known: dict[str, Architecture], name: str) -> Architecture:
    if name not in known:
        names = ", ".join(sorted(known))
        raise UnsupportedModel(f"the architecture '{name}' is not supported yet; this version runs {names}")
    return known[name]
