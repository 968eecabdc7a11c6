"""Ranks documents by a query: `/v1/rerank`. Knows the form that Qwen3's rerankers were taught.

A score is the probability of "yes" against "no" as the next token.
"""

import math
import uuid
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import ServiceClass
from appliance.errors import InvalidRequest
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import tenant_salt
from appliance.server.embedding_schemas import (
    PromptUsage,
    RankedDocument,
    RankedText,
    Ranking,
    RerankRequest,
)
from appliance.server.off_loop import run_text_work
from appliance.server.prompt_readings import PromptReading, ReadingTerms, read_prompts
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.work_answer import WorkAnswer
from appliance.text.purpose import Use
from appliance.text.tokenizer import Tokenizer

_MAX_DOCUMENTS = 2048
# Fixed by the models' training.
_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>'
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_ANSWERS = ("yes", "no")


def rerank_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handler of `/v1/rerank`."""
    decoder = BodyDecoder(RerankRequest)

    @post("/v1/rerank", status_code=200)
    async def rerank(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = decoder.decode(await read_body(request.scope, request.receive, state.limits))
        model = await state.loaded_model(wanted.model)
        answers = _answer_ids(model)
        texts = _texts(wanted)
        salt = tenant_salt(request.scope)
        terms = ReadingTerms(
            field="documents",
            deadline_s=state.limits.deadline_s,
            cache_salt=salt,
            scored_token_ids=answers,
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )

        async def work() -> bytes:
            instruction = _INSTRUCTION if wanted.instruction is None else wanted.instruction
            num_chars = sum(map(len, texts)) + len(texts) * len(_HEAD + _TAIL + instruction + wanted.query)
            prompts = await run_text_work(
                num_chars,
                lambda: [_prompt(model.tokenizer, instruction, wanted.query, text) for text in texts],
            )
            return _body(model, wanted, texts, await read_prompts(model, prompts, terms))

        return WorkAnswer(work, state)

    return [rerank]


def _answer_ids(model: ResidentModel) -> tuple[int, ...]:
    """The tokens of "yes" and "no". Raises InvalidRequest for a model that does not rank."""
    if model.facts.purpose.use is not Use.RANKING:
        raise InvalidRequest(
            f"the model '{model.model_id}' does not rank documents; use a reranking model, such as "
            "Qwen3-Reranker",
            param="model",
        )
    tokenizer = model.tokenizer
    ids = [tokenizer.encode(word, parse_special=False, add_bos=False) for word in _ANSWERS]
    if any(len(each) != 1 for each in ids) or "<|im_start|>" not in tokenizer.control_ids:
        raise InvalidRequest(
            f"the model '{model.model_id}' ranks in a form that this version does not know; use a model of "
            "the form of Qwen3-Reranker",
            param="model",
        )
    return ids[0][0], ids[1][0]


def _texts(wanted: RerankRequest) -> list[str]:
    if not 1 <= len(wanted.documents) <= _MAX_DOCUMENTS:
        raise InvalidRequest(
            f"'documents' has {len(wanted.documents)} entries; send 1 to {_MAX_DOCUMENTS}", param="documents"
        )
    if wanted.top_n is not None and wanted.top_n < 1:
        raise InvalidRequest(f"'top_n' is {wanted.top_n}; the least is 1", param="top_n")
    return [each if isinstance(each, str) else each.text for each in wanted.documents]


def _prompt(tokenizer: Tokenizer, instruction: str, query: str, document: str) -> list[int]:
    """Only the frame's own markers become control tokens."""
    asked = f"user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    head, tail = tokenizer.split_control(_HEAD), tokenizer.split_control(_TAIL)
    return tokenizer.with_bos(tokenizer.encode_segments([*head, asked, *tail]))


def _body(
    model: ResidentModel, wanted: RerankRequest, texts: list[str], readings: list[PromptReading]
) -> bytes:
    scores = [_score(*reading.scores) for reading in readings]
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])[: wanted.top_n]
    num_tokens = sum(reading.num_prompt_tokens for reading in readings)
    results = [
        RankedDocument(
            index=index,
            relevance_score=scores[index],
            document=RankedText(text=texts[index]) if wanted.return_documents else msgspec.UNSET,
        )
        for index in best_first
    ]
    return msgspec.json.encode(
        Ranking(
            id=f"rerank-{uuid.uuid4().hex}",
            model=model.model_id,
            results=results,
            usage=PromptUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
    )


def _score(yes: float, no: float) -> float:
    """Of two log-probabilities, however far apart."""
    return 1 / (1 + math.exp(min(no - yes, 700.0)))
