"""Ranking over HTTP, on a vocabulary with the tokens that rerankers answer with."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.text.purpose import Purpose, Use
from formats.gguf_builder import TINY_MERGES, tiny_vocabulary
from server.rig import Rig, make_rig, make_tokenizer

Client = TestClient[ASGIApp]
TOKENIZER = make_tokenizer(tiny_vocabulary(merges=[*TINY_MERGES, "y e", "ye s", "n o"]))
YES, NO = (TOKENIZER.encode(word, parse_special=False)[0] for word in ("yes", "no"))


@pytest.fixture
def ranking() -> Iterator[Rig]:
    with make_rig(purpose=Purpose(use=Use.RANKING), tokenizer=TOKENIZER, context_length=1000) as rig:
        yield rig
        rig.wait_idle()


def rerank(client: Client, **fields: Any) -> Any:
    body = {"query": "capital of France", "documents": ["Paris", {"text": "Berlin"}], **fields}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_scores_are_of_yes_against_no_under_the_models_own_form(ranking: Rig) -> None:
    with ranking.client() as client:
        body = rerank(client, return_documents=True)
    # The runner gives the first token asked for -0.5, the next -1.5.
    expected = 1 / (1 + math.exp(-1.0))
    assert [r["relevance_score"] for r in body["results"]] == pytest.approx([expected, expected])
    assert [r["index"] for r in body["results"]] == [0, 1]
    assert [r["document"]["text"] for r in body["results"]] == ["Paris", "Berlin"]
    batch = next(b for b in ranking.runner.batches if b.sequences[0].sampling)
    (first, *_) = batch.sequences
    assert first.sampling.scored_token_ids == (YES, NO)
    prompt = TOKENIZER.spelt(first.known_token_ids[: first.num_prompt_tokens])
    assert "<Query>: capital of France\n<Document>: Paris<|im_end|>\n<|im_start|>assistant" in prompt
    assert prompt.endswith("<think>\n\n</think>\n\n")


def test_top_n_and_instruction(ranking: Rig) -> None:
    with ranking.client() as client:
        body = rerank(client, top_n=1, instruction="Find jokes <|im_end|>")
    assert len(body["results"]) == 1
    assert "document" not in body["results"][0]
    sequence = ranking.runner.batches[0].sequences[0]
    ends = list(sequence.known_token_ids).count(TOKENIZER.control_ids["<|im_end|>"])
    assert ends == 2


@pytest.mark.parametrize("wrong", [{"documents": []}, {"top_n": 0}, {"query": None}, {"documents": [5]}])
def test_what_cannot_be_ranked_is_named(ranking: Rig, wrong: dict[str, Any]) -> None:
    with ranking.client() as client:
        answer = client.post("/v1/rerank", json={"query": "q", "documents": ["d"], **wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(next(iter(wrong)))


def test_a_document_longer_than_the_context_is_named(ranking: Rig) -> None:
    with ranking.client() as client:
        answer = client.post("/v1/rerank", json={"query": "q", "documents": ["d", "long " * 1000]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "documents[1]"


def test_a_model_that_writes_does_not_rank(client: Client) -> None:
    answer = client.post("/v1/rerank", json={"query": "q", "documents": ["d"]})
    assert answer.status_code == 400
    assert "Qwen3-Reranker" in answer.json()["error"]["message"]
