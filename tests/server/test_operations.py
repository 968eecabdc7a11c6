"""What the text side shows: tokens, texts, rendered chats, the model's properties."""

from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from server.rig import CONTEXT, MODEL_ID, TOKENIZER, Rig, make_rig

Client = TestClient[ASGIApp]
TEXTS = ["hello world", " leading", "日本語 🏳️‍🌈", "a\n\nb", "", "the" * 2000]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("field", ["content", "prompt"])
def test_a_text_is_tokenized_and_back(client: Client, text: str, field: str) -> None:
    body = client.post("/tokenize", json={field: text}).json()
    assert body["tokens"] == TOKENIZER.encode(text, parse_special=True)
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), CONTEXT)
    back = client.post("/detokenize", json={"tokens": body["tokens"]}).json()
    assert back == {"content": text, "prompt": text}


def test_control_tokens_are_parsed_unless_told_otherwise(client: Client) -> None:
    text = "<|im_start|>hello"
    parsed = client.post("/tokenize", json={"content": text}).json()["tokens"]
    plain = client.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert parsed[0] == TOKENIZER.encode("<|im_start|>", parse_special=True)[0]
    assert len(plain) > len(parsed)


def test_pieces_are_texts_or_bytes(client: Client) -> None:
    tokens = client.post("/tokenize", json={"content": "the é", "with_pieces": True}).json()["tokens"]
    pieces = [token["piece"] for token in tokens]
    assert pieces[0] == "the"
    assert [0xC3] in pieces
    assert all(isinstance(token["id"], int) for token in tokens)


def test_a_chat_is_rendered_as_the_model_reads_it(rig: Rig, client: Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi <|im_end|>"}]}
    body = client.post("/apply-template", json=chat).json()
    assert body["prompt"] == "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    used = client.post("/v1/chat/completions", json={"model": MODEL_ID, **chat}).json()["usage"]
    assert body["count"] == len(body["tokens"]) == used["prompt_tokens"]


def test_props_tell_what_clients_plan_with(client: Client) -> None:
    body = client.get("/props").json()
    assert body["default_generation_settings"]["n_ctx"] == CONTEXT
    assert body["model_alias"] == MODEL_ID
    assert "im_start" in body["chat_template"]
    assert (body["bos_token"], body["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert body["modalities"] == {"vision": False, "audio": False}


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
        ("/detokenize", {"tokens": [10**6]}, "1000000"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {}, "messages"),
    ],
)
def test_what_is_missing_or_wrong_is_named(client: Client, path: str, body: Any, word: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


def test_a_model_without_a_template_renders_nothing() -> None:
    with make_rig(chat_template=None) as rig, rig.client() as client:
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/apply-template", json=chat).status_code == 400
        assert client.get("/props").json()["chat_template"] == ""


def test_nothing_is_answered_before_the_model_is_there() -> None:
    with make_rig(is_ready=False) as rig, rig.client() as client:
        assert client.post("/tokenize", json={"content": "a"}).status_code == 503
        assert client.get("/props").status_code == 503
