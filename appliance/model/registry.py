"""The architectures this version runs, by the name a model file gives."""

from appliance.errors import UnsupportedModel
from appliance.model.architectures import Architecture
from appliance.model.llama import LLAMA

_KNOWN = {architecture.name: architecture for architecture in (LLAMA,)}


def find_architecture(name: str) -> Architecture:
    """Return the architecture of that name. Raises UnsupportedModel listing the known ones."""
    if name not in _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise UnsupportedModel(f"the architecture '{name}' is not supported yet; this version runs {known}")
    return _KNOWN[name]
