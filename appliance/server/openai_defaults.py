"""Fills in what a request leaves open and this machine's user settled for its model. Knows names, no ranges.

What a model's makers recommend is not among it: OpenAI's clients count on OpenAI's defaults. It is told with
the model, for those that want it, as our own page does.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from appliance.server.ollama_options import checked_options
from appliance.server.openai_schemas import SamplingFields

_FieldsT = TypeVar("_FieldsT", bound=SamplingFields)
# Names of Ollama's options, which the settings use, and what OpenAI's clients call them.
_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


def with_defaults(request: _FieldsT, settled: Mapping[str, Any]) -> _FieldsT:  # Any: JSON
    """The request with these options where it has none. Raises InvalidRequest where one is out of bounds."""
    if not settled:
        return request
    options = checked_options(dict(settled), field="sampling")
    given = {ours: getattr(options, name) for name, ours in _NAMES.items() if name in settled}
    missing = {name: value for name, value in given.items() if getattr(request, name) is None}
    return msgspec.structs.replace(request, **missing)


def recommended(options: Mapping[str, Any]) -> dict[str, float]:  # Any: JSON
    """The numbers among a model's options, by what OpenAI's clients call them."""
    numbers = {name: value for name, value in options.items() if isinstance(value, int | float)}
    return {ours: numbers[name] for name, ours in _NAMES.items() if name in numbers}
