"""Checks the fields that OpenAI's chat and text completions share, and makes SamplingParams of them.

Knows ranges and what this version cannot do; knows no prompts.
"""

import dataclasses
import hashlib
from typing import TypeVar

import msgspec

from appliance.engine.sequence import SamplingParams
from appliance.errors import InvalidRequest, UnsupportedField
from appliance.server.openai_best_of import BestOf
from appliance.server.openai_schemas import ChatRequest, CompletionRequest, SamplingFields
from appliance.text.tokenizer import Tokenizer

_ValueT = TypeVar("_ValueT")
# field: least and most, both allowed
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "seed": (-(2**63), 2**63 - 1),
}
_MAX_REPETITION_PENALTY = 10.0
_MAX_STOPS = 32
_MAX_STOP_CHARS = 1024
# OpenAI's own; a chat instead runs until the model ends it or the context is full.
DEFAULT_COMPLETION_TOKENS = 16
_MAX_LOGPROBS = 20
_MAX_BIAS = 100
_MAX_ID_DIGITS = 9
_MAX_BEST_OF = 20  # OpenAI's own
# No vocabulary and no context is larger: beyond it a number says "as many as there are".
_MORE_THAN_ANY = 2**31 - 1


def chat_params(request: ChatRequest, tokenizer: Tokenizer) -> SamplingParams:
    """`max_completion_tokens` wins over `max_tokens`; with neither, the model or the context ends the text.

    Raises InvalidRequest, UnsupportedField.
    """
    _refuse_unsupported_chat(request)
    max_tokens = checked_max_tokens(request.max_tokens, "max_tokens")
    max_completion_tokens = checked_max_tokens(request.max_completion_tokens, "max_completion_tokens")
    return sampling_params(
        request,
        max_tokens=max_tokens if max_completion_tokens is None else max_completion_tokens,
        num_logprobs=_chat_logprobs(request),
        tokenizer=tokenizer,
    )


def completion_params(request: CompletionRequest, tokenizer: Tokenizer) -> SamplingParams:
    """Raises InvalidRequest, UnsupportedField."""
    _refuse_unsupported_completion(request)
    num_logprobs = checked_logprobs(request.logprobs, "logprobs")
    params = sampling_params(
        request,
        max_tokens=1 if wants_prompt_only(request) else _completion_tokens(request),
        num_logprobs=num_logprobs,
        tokenizer=tokenizer,
    )
    return dataclasses.replace(params, num_prompt_logprobs=num_logprobs if request.echo else None)


def wants_prompt_only(request: CompletionRequest) -> bool:
    """Whether the answer is the prompt again; the token that the engine then makes is not shown."""
    return bool(request.echo) and request.max_tokens == 0


def _completion_tokens(request: CompletionRequest) -> int:
    max_tokens = checked_max_tokens(request.max_tokens, "max_tokens")
    return DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens


def sampling_params(
    request: SamplingFields,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    tokenizer: Tokenizer,
) -> SamplingParams:
    """Raises InvalidRequest naming the field, value and bounds. top_k 0 and -1 are off; top_p 0 is greedy."""
    _check_ranges(request)
    _check_min_tokens(request.min_tokens, max_tokens)
    top_k, top_p = _cuts(request)
    return SamplingParams(
        max_tokens=None if max_tokens is None else min(max_tokens, _MORE_THAN_ANY),
        min_tokens=request.min_tokens or 0,
        temperature=_given(request.temperature, 1.0),
        top_k=top_k,
        top_p=top_p,
        min_p=_given(request.min_p, 0.0),
        repetition_penalty=_repetition_penalty(request),
        presence_penalty=_given(request.presence_penalty, 0.0),
        frequency_penalty=_given(request.frequency_penalty, 0.0),
        seed=request.seed,
        logit_bias=_logit_bias(request.logit_bias or {}, tokenizer.vocab_size),
        stop_token_ids=frozenset() if request.ignore_eos else tokenizer.stop_token_ids,
        num_logprobs=num_logprobs,
    )


def for_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The first choice keeps the seed; each other one gets its own, a function of (seed, choice) alone."""
    if params.seed is None or choice == 0:
        return params
    digest = hashlib.blake2b(f"{params.seed}:{choice}".encode(), digest_size=8).digest()
    return dataclasses.replace(params, seed=int.from_bytes(digest, "big") >> 1)


def stop_strings(request: SamplingFields) -> tuple[str, ...]:
    """Empty strings are ignored. Raises InvalidRequest past the limits."""
    given = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(given) > _MAX_STOPS:
        raise InvalidRequest(f"'stop' has {len(given)} entries; the most is {_MAX_STOPS}", param="stop")
    longest = max(map(len, given), default=0)
    if longest > _MAX_STOP_CHARS:
        raise InvalidRequest(
            f"an entry of 'stop' has {longest} characters; the most is {_MAX_STOP_CHARS}", param="stop"
        )
    return tuple(text for text in given if text)


def checked_max_tokens(value: int | None, field: str) -> int | None:
    """At least 1. More than the context leaves is cut to that by the engine."""
    if value is not None and value < 1:
        raise InvalidRequest(f"'{field}' is {value}; the least is 1", param=field)
    return value


def checked_deadline(request: SamplingFields) -> float | None:
    """Seconds in which the answer must end. Raises InvalidRequest unless they are more than none."""
    value = request.deadline
    if value is not None and value <= 0:
        raise InvalidRequest(f"'deadline' is {value:g}; it must be above 0 seconds", param="deadline")
    return value


def num_choices(request: SamplingFields, *, num_prompts: int, limit: int) -> int:
    """How many choices each prompt gets. Raises InvalidRequest where they are too many in all."""
    n = _given(request.n, 1)
    if n < 1:
        raise InvalidRequest(f"'n' is {n}; the least is 1", param="n")
    if n * num_prompts > limit:
        raise InvalidRequest(
            f"{num_prompts} prompt(s) with 'n' {n} make {n * num_prompts} choices; the most is {limit}",
            param="n",
        )
    return n


def best_of(request: CompletionRequest, *, num_prompts: int, limit: int) -> BestOf:
    """How many choices each prompt gets, and how many of them are sent. Raises InvalidRequest."""
    num_kept = num_choices(request, num_prompts=num_prompts, limit=limit)
    num_made = _given(request.best_of, num_kept)
    if not num_kept <= num_made <= max(_MAX_BEST_OF, num_kept):
        raise InvalidRequest(
            f"'best_of' is {num_made}; it must lie between 'n', which is {num_kept}, and {_MAX_BEST_OF}",
            param="best_of",
        )
    if num_made * num_prompts > limit:
        raise InvalidRequest(
            f"{num_prompts} prompt(s) with 'best_of' {num_made} make {num_made * num_prompts} choices; "
            f"the most is {limit}",
            param="best_of",
        )
    if num_made > num_kept and request.stream:
        raise InvalidRequest(
            "'best_of' above 'n' cannot be streamed: the best is known at the end; leave one out",
            param="best_of",
        )
    return BestOf(num_made=num_made, num_kept=num_kept)


def wants_usage(request: SamplingFields) -> bool:
    """Whether the stream ends with a usage chunk. Without a stream the options have no effect."""
    return bool(request.stream_options and request.stream_options.include_usage)


def _refuse_unsupported_chat(request: ChatRequest) -> None:
    """Refuse what a client would miss; null, empty and the defaults ask for nothing."""
    asked = {
        "functions": bool(request.functions),
        "function_call": request.function_call not in (None, "none", "auto"),
        "modalities": request.modalities not in (None, [], ["text"]),
        "audio": _is_given(request.audio),
        "web_search_options": _is_given(request.web_search_options),
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise UnsupportedField(field, remedy="leave it out")


def _refuse_unsupported_completion(request: CompletionRequest) -> None:
    if request.echo and request.suffix and request.logprobs is not None:
        raise UnsupportedField("logprobs", remedy="leave it out, or one of 'echo' and 'suffix'")


def _is_given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"", b"null")


def _chat_logprobs(request: ChatRequest) -> int | None:
    num_top = checked_logprobs(request.top_logprobs, "top_logprobs")
    if not request.logprobs:
        if num_top is not None:
            raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true; set it", param="top_logprobs")
        return None
    return num_top or 0


def checked_logprobs(value: int | None, field: str) -> int | None:
    if value is not None and not 0 <= value <= _MAX_LOGPROBS:
        raise InvalidRequest(f"'{field}' is {value}; it must lie between 0 and {_MAX_LOGPROBS}", param=field)
    return value


def _check_ranges(request: SamplingFields) -> None:
    for field, (least, most) in _RANGES.items():
        value = getattr(request, field)
        if value is not None and not least <= value <= most:
            raise InvalidRequest(f"'{field}' is {value}; it must lie between {least} and {most}", param=field)


def _check_min_tokens(min_tokens: int | None, max_tokens: int | None) -> None:
    if min_tokens is None:
        return
    most = _MORE_THAN_ANY if max_tokens is None else max_tokens
    if not 0 <= min_tokens <= most:
        raise InvalidRequest(
            f"'min_tokens' is {min_tokens}; it must lie between 0 and the most tokens allowed, {most}",
            param="min_tokens",
        )


def _cuts(request: SamplingFields) -> tuple[int, float]:
    top_k = _given(request.top_k, 0)
    if top_k < -1:
        raise InvalidRequest(f"'top_k' is {top_k}; use 0 or -1 for no limit, or 1 and more", param="top_k")
    if request.top_p == 0:
        return 1, 1.0
    return min(max(top_k, 0), _MORE_THAN_ANY), _given(request.top_p, 1.0)


def _logit_bias(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Keys are token ids in decimal; -100 and 100 in effect forbid and force."""
    return tuple((_token_id(key, vocab_size), _bias(key, value)) for key, value in given.items())


def _token_id(key: str, vocab_size: int) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS and int(key) < vocab_size):
        raise InvalidRequest(
            f"'logit_bias' has the key '{key[:50]}'; keys are this model's token ids, 0 to {vocab_size - 1}",
            param="logit_bias",
        )
    return int(key)


def _bias(key: str, value: float) -> float:
    if not -_MAX_BIAS <= value <= _MAX_BIAS:
        raise InvalidRequest(
            f"'logit_bias' of the token {key} is {value}; it must lie between -100 and 100",
            param="logit_bias",
        )
    return value


def _repetition_penalty(request: SamplingFields) -> float:
    value = _given(request.repetition_penalty, 1.0)
    if not 0 < value <= _MAX_REPETITION_PENALTY:
        raise InvalidRequest(
            f"'repetition_penalty' is {value}; it must be above 0 (1 is off) and at most "
            f"{_MAX_REPETITION_PENALTY}",
            param="repetition_penalty",
        )
    return value


def _given(value: _ValueT | None, default: _ValueT) -> _ValueT:
    return default if value is None else value
