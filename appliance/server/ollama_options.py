"""Checks Ollama's options and makes SamplingParams of them. Knows ranges and defaults; knows no prompts."""

import math
import re
from typing import Any

import msgspec

from appliance.engine.sequence import SamplingParams
from appliance.errors import InvalidRequest, PromptTooLong, UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.server.ollama_schemas import KeepAlive, Options
from appliance.server.request_body import as_invalid_request
from appliance.server.residency import FOREVER_S

# What Ollama documents, but for repeat_penalty: theirs looks at the last 64 tokens only, ours at all.
_DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
# option: least and most, both allowed
_RANGES: dict[str, tuple[float, float]] = {
    "num_predict": (-2, 2**63 - 1),
    "num_ctx": (1, 2**63 - 1),
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**63 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (-(2**63), 2**63 - 1),
    "repeat_penalty": (0.01, 10.0),
    "repeat_last_n": (-1, 2**63 - 1),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
OPTION_NAMES = (*_RANGES, "stop")
_NEUTRAL = {"mirostat": 0, "tfs_z": 1.0, "typical_p": 1.0}
# Their default window; -1 is the whole context, which is what ours does.
_ORDINARY_LAST_N = (None, 64, -1)
_MORE_THAN_ANY = 2**31 - 1
_MAX_STOPS, _MAX_STOP_CHARS = 32, 1024
_MAX_LOGPROBS = 20
_DURATION = re.compile(r"([+-]?)((?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_options(model: ResidentModel, given: dict[str, Any] | None) -> Options:
    """Merge the defaults, the model's own options and the client's; null means: not given.

    Raises InvalidRequest naming the option, UnsupportedField.
    """
    own = {name: value for name, value in (given or {}).items() if value is not None}
    options = checked_options({**_DEFAULTS, **model.defaults.options, **own})
    _refuse_unsupported(options)
    return options


def checked_options(values: dict[str, Any], *, field: str = "options") -> Options:
    """Raises InvalidRequest naming the option and its bounds."""
    try:
        options = msgspec.convert(values, Options)
    except msgspec.ValidationError as error:
        raise as_invalid_request(str(error), root=field) from error
    for name, (least, most) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            place = f"{field}.{name}"
            raise InvalidRequest(f"'{place}' is {value}; it must lie between {least} and {most}", param=place)
    return options


def sampling_params(
    options: Options,
    *,
    num_prompt_tokens: int,
    stop_token_ids: frozenset[int],
    num_logprobs: int | None,
) -> SamplingParams:
    """Raises PromptTooLong where `num_ctx` leaves no room; more than the model's context asks for no more."""
    most = options.num_predict if options.num_predict and options.num_predict > 0 else _MORE_THAN_ANY
    if options.num_ctx is not None:
        if num_prompt_tokens >= options.num_ctx:
            raise PromptTooLong(num_tokens=num_prompt_tokens, limit=options.num_ctx)
        most = min(most, options.num_ctx - num_prompt_tokens)
    top_p = 1.0 if options.top_p is None else options.top_p
    top_k = min(max(options.top_k or 0, 0), _MORE_THAN_ANY)
    penalized = options.repeat_last_n != 0
    return SamplingParams(
        max_tokens=None if most == _MORE_THAN_ANY else min(most, _MORE_THAN_ANY),
        temperature=1.0 if options.temperature is None else options.temperature,
        top_k=1 if top_p == 0 else top_k,
        top_p=top_p or 1.0,
        min_p=options.min_p or 0.0,
        repetition_penalty=(options.repeat_penalty or 1.0) if penalized else 1.0,
        presence_penalty=options.presence_penalty or 0.0,
        frequency_penalty=options.frequency_penalty or 0.0,
        seed=None if options.seed == -1 else options.seed,
        stop_token_ids=stop_token_ids,
        num_logprobs=num_logprobs,
    )


def stop_strings(options: Options) -> tuple[str, ...]:
    """Empty strings are ignored. Raises InvalidRequest past the limits."""
    given = [options.stop] if isinstance(options.stop, str) else options.stop or []
    if len(given) > _MAX_STOPS or max(map(len, given), default=0) > _MAX_STOP_CHARS:
        raise InvalidRequest(
            f"'options.stop' has {len(given)} entries, the longest of {max(map(len, given))} characters; "
            f"the most are {_MAX_STOPS} of {_MAX_STOP_CHARS}",
            param="options.stop",
        )
    return tuple(text for text in given if text)


def logprobs_wanted(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many likeliest tokens to show beside each; None for no log-probabilities at all."""
    if top_logprobs is not None and not 0 <= top_logprobs <= _MAX_LOGPROBS:
        raise InvalidRequest(
            f"'top_logprobs' is {top_logprobs}; it must lie between 0 and {_MAX_LOGPROBS}",
            param="top_logprobs",
        )
    return (top_logprobs or 0) if logprobs else None


def keep_alive_s(value: KeepAlive) -> float | None:
    """Seconds to stay loaded: infinity for a negative value, None where nothing was asked.

    A number is in seconds; a text is a duration such as "5m" or "1h30m". Raises InvalidRequest.
    """
    if value is None:
        return None
    seconds = float(value) if isinstance(value, int | float) else _duration_s(value)
    if math.isnan(seconds):
        raise InvalidRequest(
            f"'keep_alive' is {value!r:.60}; send seconds, or a duration such as '5m' or '1h30m'",
            param="keep_alive",
        )
    # A day more or less makes no difference to a timer; a million years do.
    return FOREVER_S if seconds < 0 or seconds > 1e9 else seconds


def _duration_s(text: str) -> float:
    """NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        match = _DURATION.fullmatch(text.strip())
    if match is None:
        return math.nan
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", match[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if match[1] == "-" else seconds


def _refuse_unsupported(options: Options) -> None:
    for name, neutral in _NEUTRAL.items():
        if getattr(options, name) not in (None, neutral):
            raise UnsupportedField(f"options.{name}", remedy=f"leave it out, or set it to {neutral}")
    is_penalized = (options.repeat_penalty or 1.0) != 1.0
    if is_penalized and options.repeat_last_n not in (*_ORDINARY_LAST_N, 0):
        raise UnsupportedField(
            "options.repeat_last_n", remedy="leave it out: repeat_penalty looks at all tokens; 0 turns it off"
        )
