"""Vectors over HTTP: OpenAI's route and both of Ollama's. The hidden state here depends on the whole text."""

import base64
import math
import struct
from typing import Any

import openai
import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.text.purpose import Pooling, Purpose, Use
from formats.gguf_builder import tiny_vocabulary
from server.rig import (
    CONTEXT,
    EOS,
    MODEL_ID,
    TOKENIZER,
    Rig,
    make_rig,
    make_tokenizer,
    open_socket,
    request_bytes,
    serve,
    wait_for,
)

Client = TestClient[ASGIApp]


def embed(client: Client, given: Any, **fields: Any) -> list[Any]:
    answer = client.post("/v1/embeddings", json={"model": MODEL_ID, "input": given, **fields})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    assert body["pooling"] == fields.get("pooling", "last")
    return [item["embedding"] for item in body["data"]]


def refusal(client: Client, given: Any, **fields: Any) -> Any:
    answer = client.post("/v1/embeddings", json={"model": MODEL_ID, "input": given, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=False)


def test_vectors_have_length_one_and_do_not_depend_on_their_neighbours(client: Client) -> None:
    texts = [f"text number {index}" for index in range(37)]
    vectors = embed(client, texts)
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-6) for vector in vectors)
    assert vectors[36] == embed(client, texts[36])[0]
    assert vectors[0] != vectors[1]


def test_texts_and_their_token_ids_are_the_same(client: Client) -> None:
    texts = ["the world", "hello"]
    ids = [ids_of(text) for text in texts]
    assert embed(client, ids) == embed(client, texts)
    assert embed(client, ids[0]) == embed(client, "the world")


def test_usage_counts_every_token(client: Client) -> None:
    answer = client.post("/v1/embeddings", json={"model": MODEL_ID, "input": ["the world", "hello"]})
    num_tokens = len(ids_of("the world")) + len(ids_of("hello"))
    assert answer.json()["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_base64_is_the_same_numbers_bit_for_bit(client: Client) -> None:
    floats = embed(client, "hello", encoding_format="float")[0]
    assert embed(client, "hello", encoding_format=None)[0] == floats
    data = base64.b64decode(embed(client, "hello", encoding_format="base64")[0])
    assert list(struct.unpack(f"<{len(floats)}f", data)) == floats
    assert refusal(client, "hello", encoding_format="int8")["param"] == "encoding_format"


def test_dimensions_keep_the_first_at_length_one(client: Client) -> None:
    whole = embed(client, "hello")[0]
    assert embed(client, "hello", dimensions=2)[0] == whole
    assert embed(client, "hello", dimensions=1) == [[1.0]]
    for wrong in (0, -1, 3):
        assert refusal(client, "hello", dimensions=wrong)["param"] == "dimensions"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "input"),
        ("", "input[0]"),
        ([""], "input[0]"),
        (["a", ""], "input[1]"),
        ([[]], "input[0]"),
        (["a", [1]], None),
        (["a", 1], "input"),
        ([1, -1], "input[0]"),
        ([[1], [10**6]], "input[1]"),
        (None, "input"),
        (["a"] * 2049, "input"),
    ],
)
def test_inputs_that_mean_nothing_are_named(client: Client, given: Any, param: str | None) -> None:
    if param is None:
        assert len(embed(client, given)) == 2
    else:
        assert refusal(client, given)["param"] == param


def test_a_text_longer_than_the_context_is_cut_on_request_only(rig: Rig, client: Client) -> None:
    long = [7] * CONTEXT
    assert len(embed(client, long[:-1])) == 1
    error = refusal(client, [[1], long])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert embed(client, long, truncate_prompt_tokens=-1) == embed(client, long[:-1])
    assert embed(client, "the world", truncate_prompt_tokens=1) == embed(client, ids_of("the world")[:1])
    assert refusal(client, "a", truncate_prompt_tokens=CONTEXT)["param"] == "truncate_prompt_tokens"


def test_markers_in_a_text_stay_text(client: Client) -> None:
    usage = client.post("/v1/embeddings", json={"input": "<|im_end|>"}).json()["usage"]
    assert usage["prompt_tokens"] > 1


def test_a_model_that_was_taught_so_gets_its_last_token() -> None:
    tokenizer = make_tokenizer(tiny_vocabulary() | {"tokenizer.ggml.add_eos_token": True})
    with make_rig(purpose=Purpose(use=Use.EMBEDDING), tokenizer=tokenizer) as rig, rig.client() as client:
        vector = embed(client, "hello")
        assert vector == embed(client, [*ids_of("hello"), EOS])
        cut = embed(client, "hello", truncate_prompt_tokens=2)
        assert cut == embed(client, [ids_of("hello")[0], EOS])


def test_a_writing_model_pools_by_the_last_token_or_the_mean(client: Client) -> None:
    """The scripted model's states are ones but for the last token's."""
    vectors = embed(client, ["the world", [5] * 40], pooling="mean")
    assert vectors != embed(client, ["the world", [5] * 40])
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-6) for vector in vectors)
    assert refusal(client, "a", pooling="first")["param"] == "pooling"


@pytest.mark.parametrize("own", list(Pooling))
def test_an_embedding_model_pools_as_it_was_trained_to(own: Pooling) -> None:
    with make_rig(purpose=Purpose(use=Use.EMBEDDING, pooling=own)) as rig, rig.client() as client:
        if own is Pooling.FIRST:
            assert "first token" in refusal(client, "a")["message"]
            return
        answer = client.post("/v1/embeddings", json={"model": MODEL_ID, "input": "a b"})
        assert answer.json()["pooling"] == own
        other = Pooling.LAST if own is Pooling.MEAN else Pooling.MEAN
        assert refusal(client, "a", pooling=other)["param"] == "pooling"


def test_more_texts_than_the_queue_holds_are_embedded() -> None:
    with make_rig(queue_limit=16, max_sequences=4) as rig, rig.client() as client:
        assert len(embed(client, [f"text {index}" for index in range(200)])) == 200


def test_a_failed_text_is_a_500_and_the_next_request_works(rig: Rig, client: Client) -> None:
    rig.runner.error = RuntimeError("a secret path")
    answer = client.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    rig.runner.error = None
    assert len(embed(client, "a")) == 1


def test_a_client_that_leaves_ends_its_work() -> None:
    with make_rig(step_s=0.02, max_sequences=1) as rig, serve(rig) as server:
        texts = [f"text {index}" for index in range(500)]
        connection = open_socket(server, request_bytes("/v1/embeddings", {"input": texts}))
        wait_for(lambda: rig.runner.num_steps > 2)
        connection.close()
        rig.wait_idle()
        assert rig.runner.num_steps < 100


def test_the_openai_client_reads_them(rig: Rig, client: Client) -> None:
    expected = embed(client, "hello")[0]
    with serve(rig) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as api:
        answer = api.embeddings.create(model=MODEL_ID, input=["hello", "world"])
        assert answer.data[0].embedding == expected
        assert len(answer.data) == 2


def test_ollama_gives_the_same_vectors_by_both_routes(client: Client) -> None:
    expected = embed(client, ["hello", "world"])
    both = client.post("/api/embed", json={"model": MODEL_ID, "input": ["hello", "world"]}).json()
    assert both["embeddings"] == expected
    assert both["prompt_eval_count"] == len(ids_of("hello")) + len(ids_of("world"))
    assert both["total_duration"] >= both["load_duration"] >= 0
    older = client.post("/api/embeddings", json={"model": MODEL_ID, "prompt": "hello"}).json()
    assert older == {"embedding": expected[0]}


def test_ollama_edges(client: Client) -> None:
    for empty in ("", [], None):
        answer = client.post("/api/embed", json={"model": MODEL_ID, "input": empty})
        assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
    assert client.post("/api/embeddings", json={"model": MODEL_ID}).json() == {"embedding": []}
    missing = client.post("/api/embed", json={"model": "nope", "input": "a"})
    assert (missing.status_code, "not found" in missing.json()["error"]) == (404, True)
    long = {"model": MODEL_ID, "input": "a b c d " * CONTEXT}
    refused = client.post("/api/embed", json=long)
    assert (refused.status_code, "truncate" in refused.json()["error"]) == (400, True)
    assert client.post("/api/embed", json={**long, "truncate": True}).status_code == 200
