"""Routes that show what the text side does: tokens of a text, a text of tokens, a rendered chat, the model.

The request forms are those that other local servers share. Knows no sampling and no sequences.
"""

from typing import Any

import msgspec
from litestar import Request, Response, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler

from appliance import __version__
from appliance.errors import InvalidRequest
from appliance.model_pool import ResidentModel
from appliance.server.appliance_state import ApplianceState
from appliance.server.chat_turn import rendered_chat, with_system
from appliance.server.error_responses import json_response
from appliance.server.off_loop import run_text_work
from appliance.server.openai_prompts import chat_turn
from appliance.server.openai_schemas import ChatRequest
from appliance.server.request_body import BodyDecoder, read_body

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_MAX_TOKENS_DECODED = 2**20


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: a text as `content` or `prompt`."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One token, asked for with its bytes: a text where they are one, else numbers."""

    id: int
    piece: str | list[int]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The text under both names that clients read."""

    content: str
    prompt: str


class RenderedChat(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /apply-template`: what the model would read, control tokens as their texts."""

    prompt: str
    tokens: list[int]
    count: int


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    n_ctx: int
    params: dict[str, Any]  # JSON: the model's own defaults


class Modalities(msgspec.Struct, frozen=True, kw_only=True):
    vision: bool = False
    audio: bool = False


class Props(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /props`."""

    default_generation_settings: GenerationSettings
    model_alias: str
    model_path: str  # the id: no client needs to know a path
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str


def operation_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/tokenize`, `/detokenize`, `/apply-template` and `/props`."""
    tokenize_decoder, detokenize_decoder = BodyDecoder(TokenizeRequest), BodyDecoder(DetokenizeRequest)
    template_decoder = BodyDecoder(ChatRequest)

    @post("/tokenize", status_code=200)
    async def tokenize(request: Request[Any, Any, Any]) -> Response[bytes]:
        wanted = tokenize_decoder.decode(await read_body(request.scope, request.receive, state.limits))
        return _json(await _tokenized(await state.loaded_model(wanted.model), wanted))

    @post("/detokenize", status_code=200)
    async def detokenize(request: Request[Any, Any, Any]) -> Response[bytes]:
        wanted = detokenize_decoder.decode(await read_body(request.scope, request.receive, state.limits))
        model = await state.loaded_model(wanted.model)
        tokenizer = model.tokenizer
        _check_ids(wanted.tokens, tokenizer.vocab_size)
        text = await run_text_work(len(wanted.tokens), lambda: tokenizer.decode(wanted.tokens))
        return _json(Detokenized(content=text, prompt=text))

    @post("/apply-template", status_code=200)
    async def apply_template(request: Request[Any, Any, Any]) -> Response[bytes]:
        wanted = template_decoder.decode(await read_body(request.scope, request.receive, state.limits))
        model = await state.loaded_model(wanted.model)
        ids = await rendered_chat(model, with_system(model, chat_turn(wanted)))
        text = await run_text_work(len(ids), lambda: model.tokenizer.spelt(ids))
        return _json(RenderedChat(prompt=text, tokens=ids, count=len(ids)))

    @route("/props", http_method=_LOOK)
    async def props() -> Response[bytes]:
        return _json(_props(await state.loaded_model(None)))

    return [tokenize, detokenize, apply_template, props]


async def _tokenized(model: ResidentModel, wanted: TokenizeRequest) -> Tokenized:
    """A BOS is added only where it is asked for; control tokens in the text count, as in a completion."""
    text = wanted.content if wanted.content is not None else wanted.prompt
    if text is None:
        raise InvalidRequest("'content' is missing; send the text to tokenize", param="content")
    adds = wanted.add_special if wanted.add_special is not None else wanted.add_special_tokens
    parses = wanted.parse_special is not False

    def work() -> list[int]:
        return model.tokenizer.encode(text, parse_special=parses, add_bos=None if adds else False)

    ids = await run_text_work(len(text), work)
    tokens: list[int | TokenPiece] = list(ids)
    if wanted.with_pieces:
        tokens = [TokenPiece(id=token_id, piece=_piece(model, token_id)) for token_id in ids]
    return Tokenized(tokens=tokens, count=len(ids), max_model_len=model.facts.context_length)


def _piece(model: ResidentModel, token_id: int) -> str | list[int]:
    data = model.tokenizer.token_bytes(token_id)
    try:
        return data.decode() or model.tokenizer.spelt([token_id])
    except UnicodeDecodeError:
        return list(data)


def _check_ids(ids: list[int], vocab_size: int) -> None:
    if len(ids) > _MAX_TOKENS_DECODED:
        raise InvalidRequest(
            f"'tokens' has {len(ids)} entries; the most is {_MAX_TOKENS_DECODED}", param="tokens"
        )
    wrong = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise InvalidRequest(
            f"'tokens' holds the id {wrong}; this model's run from 0 to {vocab_size - 1}", param="tokens"
        )


def _props(model: ResidentModel) -> Props:
    return Props(
        default_generation_settings=GenerationSettings(
            n_ctx=model.facts.context_length, params=dict(model.defaults.options)
        ),
        model_alias=model.model_id,
        model_path=model.model_id,
        chat_template=model.chat_template.source if model.chat_template else "",
        bos_token=model.tokenizer.bos_token,
        eos_token=model.tokenizer.eos_token,
        modalities=Modalities(),
        build_info=f"inference-appliance {__version__}",
    )


def _json(answer: msgspec.Struct) -> Response[bytes]:
    return json_response(msgspec.json.encode(answer))
