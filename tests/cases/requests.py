"""Requests that have broken servers like ours, and what is right: one line each. Data; knows no test.

`id` names the public fault it stands for; several lines may stand for one, and for its neighbours.
"""

from dataclasses import dataclass
from typing import Any

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBED, OLLAMA_CHAT, OLLAMA_TEXT = "/v1/embeddings", "/api/chat", "/api/generate"
MESSAGES = "/v1/messages"
HUGE = (2**31, 2**63 - 1, 2**64)
NOT_INTEGERS = (1e30, "12", 3.5, True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`status` is the right one; `names` is in the error's `param` or message, where there is an error."""

    id: str
    path: str
    fields: dict[str, Any]
    status: int = 200
    names: str = ""


def _each(
    id_: str, path: str, key: str, values: Any, status: int = 400, names: str | None = None
) -> list[Case]:
    named = (key if names is None else names) if status >= 400 else ""
    return [Case(id=id_, path=path, fields={key: value}, status=status, names=named) for value in values]


def _schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": schema}}


CONTRADICTIONS = (
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "string", "minLength": 5, "maxLength": 4},
    {"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 2},
    {"type": "string", "pattern": "^(?=a)b$"},
    {"type": "string", "pattern": "("},
    {"$ref": "#"},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "http://127.0.0.1:9/schema.json"},
    {"type": "nothing"},
    {"enum": []},
    {"enum": 5},
    {"properties": []},
    {"properties": {"a": {"required": "a"}}},
    {"anyOf": {}},
    {"$defs": 5},
    {"properties": {"a": {"const": 2**60}}, "required": [{}]},
    {"properties": {"a": {"const": 2**60}, "b": 5}, "required": ["a", "b"]},
    5,
)
SATISFIABLE = (
    {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
    {"type": "integer", "exclusiveMaximum": 10, "exclusiveMinimum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 50},
    {"properties": {"a": {"const": 2**60}, "b": True}, "required": ["a", "b"]},
    {"const": 9_007_199_254_740_991},
    {"type": "string", "pattern": "^hello there$"},
    {"enum": ["a", 1, None, True]},
    True,
)

ALL = [
    *_each("stop-06", CHAT, "stop", ([1], [["a"]], ["x"] * 33, {}, 5)),
    *_each("stop-06", CHAT, "stop", (None, "\n", ["\n"], [], ["a"] * 5), 200),
    *_each("stop-07", CHAT, "stop", ("", [""], ["", ""]), 200),
    *_each("stop-07", OLLAMA_CHAT, "options", ({"stop": ""}, {"stop": [""]}), 200),
    *_each("stop-06", MESSAGES, "stop_sequences", ([1], "x")),
    *_each("lim-01", TEXT, "max_tokens", (0, -1, -(2**63))),
    *_each("lim-01", CHAT, "max_completion_tokens", (0, -1)),
    *_each("lim-01", RESPONSES, "max_output_tokens", (0, -1, "1")),
    *_each("lim-01", MESSAGES, "max_tokens", (0, -1, None)),
    *_each("lim-02", CHAT, "max_tokens", (None,), 200),
    *_each("lim-04", CHAT, "max_tokens", HUGE, 200),
    *_each("lim-04", TEXT, "max_tokens", HUGE, 200),
    *_each("lim-04", CHAT, "max_tokens", NOT_INTEGERS),
    *_each("lim-04", TEXT, "max_tokens", NOT_INTEGERS),
    *_each("lim-04", OLLAMA_CHAT, "options", ({"num_predict": 2**40}, {"num_predict": -1}), 200),
    *_each(
        "lim-04", OLLAMA_CHAT, "options", ({"num_predict": "12"}, {"num_predict": 1.5}), names="num_predict"
    ),
    *_each("ctx-01", TEXT, "prompt", ("long " * 500, [5] * 257, [5] * 256)),
    *_each("ctx-03", TEXT, "prompt", ([5] * 255,), 200),
    *_each("ctx-01", CHAT, "messages", ([{"role": "user", "content": "long " * 500}],)),
    *_each("ctx-01", RESPONSES, "input", ("long " * 500,)),
    *_each("ctx-01", EMBED, "input", ("long " * 500, [[5] * 256])),
    *_each("ctx-01", OLLAMA_TEXT, "prompt", ("long " * 500,), names="tokens"),
    *_each("ctx-01", MESSAGES, "messages", ([{"role": "user", "content": "long " * 500}],), names="tokens"),
    *_each("smp-03", CHAT, "top_p", (1.01, -0.1, "NaN", 1e400)),
    *_each("smp-03", CHAT, "top_p", (0, 1), 200),
    *_each("smp-03", CHAT, "top_k", (0, -1, 1, 10**9), 200),
    *_each("smp-03", CHAT, "top_k", (-2, 1.5, "5")),
    *_each("smp-03", CHAT, "min_p", (0, 1), 200),
    *_each("smp-03", CHAT, "min_p", (-0.1, 1.1)),
    *_each("smp-03", CHAT, "temperature", (0, 1e-9, 2), 200),
    *_each("smp-03", CHAT, "temperature", (2.01, -1, "NaN", [])),
    *_each("smp-04", CHAT, "repetition_penalty", (0, -1, 1e9)),
    *_each(
        "smp-04",
        OLLAMA_CHAT,
        "options",
        ({"repeat_penalty": 0}, {"repeat_penalty": -1}),
        names="repeat_penalty",
    ),
    *_each("smp-04", CHAT, "frequency_penalty", (-2.1, 2.1)),
    *_each("smp-06", CHAT, "logit_bias", ({"191222": -100}, {"-1": 1}, {"abc": 1}, {"5": 101}, {"5": None})),
    *_each("smp-06", CHAT, "logit_bias", ({" 5": 1}, {"5.0": 1}, {"٥": 1}, {"1" * 40: 1}, [5])),
    *_each("smp-06", CHAT, "logit_bias", ({"5": 100}, {"5": -100}, {}, None), 200),
    *_each("smp-09", CHAT, "seed", (2**64, 2**63, -(2**63) - 1, 1.5, "7")),
    *_each("smp-09", CHAT, "seed", (2**63 - 1, -1, 0, -(2**63), None), 200),
    *_each("smp-10", CHAT, "n", (0, -1, 1.5, 2**40)),
    *_each("smp-10", CHAT, "n", (1, 8, None), 200),
    *_each("lp-03", TEXT, "logprobs", (-1, 21, True, "1")),
    *_each("lp-03", TEXT, "logprobs", (0, 5, None), 200),
    *_each("lp-01", CHAT, "top_logprobs", (2,)),
    *_each("msg-01", CHAT, "messages", ([], None, 5, [{}], [{"role": "user"}], ["hi"], {})),
    *_each("msg-01", MESSAGES, "messages", ([], None, 5, [{}])),
    *_each("msg-01", OLLAMA_CHAT, "messages", (5, [{}], [5])),
    *_each("msg-01", RESPONSES, "input", ([], None, 5, [{}], [5], "")),
    *_each("msg-02", TEXT, "prompt", ("", [""], [], [[]], None, [[], [1]])),
    *_each("msg-02", CHAT, "messages", ([{"role": "user", "content": ""}],), 200),
    *_each("msg-05", CHAT, "messages", ([{"role": "user", "content": [{"type": "image_url"}]}],)),
    *_each("msg-05", CHAT, "messages", ([{"role": "user", "content": [{"type": "text"}]}],)),
    *_each("msg-07", CHAT, "messages", ([{"role": "wizard", "content": "x"}],)),
    *_each("msg-07", CHAT, "messages", ([{"role": "developer", "content": "x"}],), 200),
    *_each(
        "tool-06",
        CHAT,
        "tool_choice",
        ("required", {"type": "function", "function": {"name": "x"}}, "must", 5),
    ),
    *_each("tool-06", CHAT, "tool_choice", ("none", "auto", None), 200),
    *_each("so-01", CHAT, "response_format", map(_schema, CONTRADICTIONS)),
    *_each("so-04", CHAT, "response_format", map(_schema, SATISFIABLE), 200),
    *_each("so-01", CHAT, "response_format", ({"type": "json_schema"}, {"type": "xml"}, {}, 5)),
    *_each("so-08", OLLAMA_CHAT, "format", ("json", ""), 200),
    *_each("so-01", OLLAMA_CHAT, "format", ("xml", 5, {"$ref": "#"})),
    *_each("cmp-01", TEXT, "prompt", ("a", ["a", "b"], [1, 2, 3], [[1, 2], [3]], ["a", [1]]), 200),
    *_each("cmp-01", TEXT, "prompt", ([1, "a"], [1, [2]], [-1], [10**7], [1.5], {}, [None])),
    *_each("cmp-03", TEXT, "suffix", ("", None), 200),
    *_each("cmp-03", TEXT, "suffix", ("return x",)),
    *_each("sse-01", CHAT, "stream_options", (None, {}, {"include_usage": True}), 200),
    *_each("sse-01", CHAT, "stream_options", (5, {"include_usage": "yes"})),
    *_each("http-05", CHAT, "model", (None, ""), 200),
    *_each("http-05", CHAT, "model", ("nope", "x" * 10_000, "../../etc/passwd"), 404, "model"),
    *_each("http-05", CHAT, "model", (5, [], True)),
    *_each("dl-02", "/api/show", "model", ("../../etc/passwd", "a/../../b", "/abs", "C:\\x", "."), 404, ""),
    *_each("dl-02", "/api/show", "model", ("a%2f..%2fb", "a\0b", "con", "x" * 300), 404, ""),
    *_each("oll-05", "/api/show", "model", ("tiny", "tiny:latest", "TINY"), 200),
    *_each("emb-01", EMBED, "encoding_format", ("base64", "float", None), 200),
    *_each("emb-01", EMBED, "encoding_format", ("int8", "", 5)),
    *_each("emb-03", EMBED, "input", ("a", ["a", "b"], [1], [[1], [2]]), 200),
    *_each("emb-03", EMBED, "input", ("", [], [[]], None, 5, [None], [1.5])),
    *_each("emb-03", EMBED, "dimensions", (0, -1, 10**6, 1.5, "2")),
]
