"""Vectors of texts: `/v1/embeddings`, and what Ollama's routes share with it. Knows pooling, no tensors.

A vector is the hidden state of the last token after the final norm, or the mean over all, at length 1.
"""

import base64
import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import ServiceClass
from appliance.errors import InvalidRequest, UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import tenant_salt
from appliance.server.embedding_schemas import Embedding, EmbeddingList, EmbeddingRequest, PromptUsage
from appliance.server.off_loop import run_text_work
from appliance.server.prompt_readings import ReadingTerms, read_prompts
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.work_answer import WorkAnswer
from appliance.text.purpose import Pooling, Use
from appliance.text.tokenizer import Tokenizer

_MAX_INPUTS = 2048  # OpenAI's own


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingWishes:
    """`max_tokens` cuts what is longer, keeping its beginning; None cuts nothing."""

    dimensions: int | None = None
    max_tokens: int | None = None
    pooling: str | None = None  # the model's own where nothing is said
    cache_salt: str = ""
    service_class: ServiceClass = ServiceClass.SILVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Vectors in float32, in the order of the inputs."""

    vectors: list["array[float]"]
    num_prompt_tokens: int
    pooling: Pooling


def embedding_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handler of `/v1/embeddings`."""
    decoder = BodyDecoder(EmbeddingRequest)

    @post("/v1/embeddings", status_code=200)
    async def create_embeddings(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = decoder.decode(await read_body(request.scope, request.receive, state.limits))
        is_base64 = _is_base64(wanted.encoding_format)
        model = await state.loaded_model(wanted.model)
        wishes = EmbeddingWishes(
            dimensions=wanted.dimensions,
            max_tokens=_truncation(wanted.truncate_prompt_tokens, model),
            pooling=wanted.pooling,
            cache_salt=tenant_salt(request.scope),
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )

        async def work() -> bytes:
            embedded = await embed(state, model, embedding_inputs(wanted.input), wishes)
            return _body(model, embedded, is_base64=is_base64)

        return WorkAnswer(work, state)

    return [create_embeddings]


def embedding_inputs(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A text, token ids, or a list of either. Raises InvalidRequest."""
    if isinstance(given, str):
        given = [given]
    ids = [item for item in given if isinstance(item, int)]
    inputs = [item for item in given if not isinstance(item, int)]
    if ids and inputs:
        raise InvalidRequest("'input' mixes token ids with texts; send one or the other", param="input")
    inputs = [ids] if ids else inputs
    if not 1 <= len(inputs) <= _MAX_INPUTS:
        raise InvalidRequest(
            f"'input' has {len(inputs)} entries; send 1 to {_MAX_INPUTS}, and longer lists in parts",
            param="input",
        )
    if not all(inputs):
        index = next(index for index, item in enumerate(inputs) if not item)
        raise InvalidRequest(f"'input[{index}]' is empty; leave it out", param=f"input[{index}]")
    return inputs


async def embed(
    state: ApplianceState,
    model: ResidentModel,
    inputs: Sequence[str | list[int]],
    wishes: EmbeddingWishes,
) -> Embedded:
    """Compute the vectors. Raises InvalidRequest, PromptTooLong, and what the engine raises."""
    pooling = _pooling(model, wishes.pooling)
    if wishes.dimensions is not None and wishes.dimensions < 1:
        raise InvalidRequest(f"'dimensions' is {wishes.dimensions}; the least is 1", param="dimensions")
    tokenizer, most = model.tokenizer, wishes.max_tokens

    def encode() -> list[list[int]]:
        return [_token_ids(tokenizer, item, f"input[{index}]", most) for index, item in enumerate(inputs)]

    prompts = await run_text_work(sum(map(len, inputs)), encode)
    terms = ReadingTerms(
        field="input",
        deadline_s=state.limits.deadline_s,
        cache_salt=wishes.cache_salt,
        service_class=wishes.service_class,
        wants_mean_state=pooling is Pooling.MEAN,
    )
    readings = await read_prompts(model, prompts, terms)
    return Embedded(
        vectors=[_vector(reading.hidden_state, wishes.dimensions) for reading in readings],
        num_prompt_tokens=sum(reading.num_prompt_tokens for reading in readings),
        pooling=pooling,
    )


def _pooling(model: ResidentModel, wanted: str | None) -> Pooling:
    """An embedding model pools as it was trained to. Raises InvalidRequest."""
    own = model.facts.purpose.pooling
    if own is Pooling.FIRST:
        raise InvalidRequest(
            f"the model '{model.model_id}' was trained to pool by its first token, which a model that reads "
            "from left to right cannot; use one that pools by the last token or the mean",
            param="model",
        )
    if wanted is None:
        return own
    if wanted not in (Pooling.LAST, Pooling.MEAN):
        raise UnsupportedField("pooling", remedy="use last or mean, or leave it out")
    if model.facts.purpose.use is Use.EMBEDDING and wanted != own:
        raise InvalidRequest(
            f"'pooling' is {wanted} and the model '{model.model_id}' was trained to pool by {own.value}; "
            "leave it out",
            param="pooling",
        )
    return Pooling(wanted)


def _token_ids(tokenizer: Tokenizer, item: str | list[int], place: str, most: int | None) -> list[int]:
    """A text begins and ends with the tokens that the model was taught; ids are taken as they are."""
    if isinstance(item, str):
        ids = tokenizer.encode(item, parse_special=False)
        end = [] if tokenizer.last_token_id is None else [tokenizer.last_token_id]
        return ids[: max(most - len(end), 0)] + end if most is not None else ids + end
    wrong = next((token_id for token_id in item if not 0 <= token_id < tokenizer.vocab_size), None)
    if wrong is not None:
        raise InvalidRequest(
            f"'{place}' holds the token id {wrong}; this model's run from 0 to {tokenizer.vocab_size - 1}",
            param=place,
        )
    return item[:most]


def _vector(hidden: Sequence[float], dimensions: int | None) -> "array[float]":
    """The first `dimensions` numbers at length 1. Raises InvalidRequest where there are fewer."""
    if dimensions is not None and dimensions > len(hidden):
        raise InvalidRequest(
            f"'dimensions' is {dimensions} and this model's vectors have {len(hidden)}", param="dimensions"
        )
    kept = hidden[:dimensions]
    length = math.sqrt(sum(value * value for value in kept)) or 1.0
    return array("f", [value / length for value in kept])


def _truncation(wanted: int | None, model: ResidentModel) -> int | None:
    longest = longest_prompt(model)
    if wanted is None:
        return None
    if wanted != -1 and not 1 <= wanted <= longest:
        raise InvalidRequest(
            f"'truncate_prompt_tokens' is {wanted}; use -1 for the context, or 1 to {longest}",
            param="truncate_prompt_tokens",
        )
    return longest if wanted == -1 else wanted


def longest_prompt(model: ResidentModel) -> int:
    """Tokens of the longest text that can be embedded."""
    return model.facts.context_length - 1


def _is_base64(encoding: str | None) -> bool:
    if encoding not in (None, "float", "base64"):
        raise UnsupportedField("encoding_format", remedy="use float or base64")
    return encoding == "base64"


def _body(model: ResidentModel, embedded: Embedded, *, is_base64: bool) -> bytes:
    num_tokens = embedded.num_prompt_tokens
    return msgspec.json.encode(
        EmbeddingList(
            data=[
                Embedding(index=index, embedding=_base64(vector) if is_base64 else vector.tolist())
                for index, vector in enumerate(embedded.vectors)
            ],
            model=model.model_id,
            usage=PromptUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
            pooling=embedded.pooling.value,
        )
    )


def _base64(vector: "array[float]") -> str:
    """Little-endian on every machine."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
