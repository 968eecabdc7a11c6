"""The JSON of embeddings and rankings, as clients send and read it. Knows shapes, not meanings."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`. `truncate_prompt_tokens`, which other servers know: -1 is the context."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    pooling: str | None = None  # last or mean; beyond OpenAI's
    user: Raw = msgspec.field(default_factory=Raw)


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """`embedding` is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class PromptUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """`pooling` says which hidden states a vector is made of: an addition of ours."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PromptUsage
    pooling: str


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/rerank`. A document is a text, or an object that has one."""

    query: str
    documents: list[str | RankedText]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Best first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
