"""Files like Qwen3-Embedding and Qwen3-Reranker, of two random layers, from the disk to the HTTP answer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.catalog import ModelFile
from appliance.config import MemoryAmount, Settings
from appliance.loader import load_model
from appliance.model_pool import ModelPool, ResidentModel
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState, ServerLimits
from formats.gguf_builder import (
    TINY_MERGES,
    Value,
    encode_tensor,
    tiny_llama_metadata,
    tiny_llama_tensors,
    tiny_vocabulary,
    write_gguf,
)
from oracles.tiny_model import load_eager, logits_by_chunks

MERGES = [*TINY_MERGES, "y e", "ye s", "n o"]
LAST, RANKING = 3, 4  # pooling types of GGUF


def write_checkpoint(path: Path, **own: Value) -> tuple[Path, np.ndarray]:
    """Return the file and its embedding, which is its output head too."""
    vocabulary = tiny_vocabulary(merges=MERGES)
    tokens = vocabulary["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata = {k.replace("llama.", "qwen3."): v for k, v in tiny_llama_metadata().items()} | vocabulary
    metadata |= {"general.architecture": "qwen3", "general.name": "X", "qwen3.vocab_size": len(tokens), **own}
    random = np.random.default_rng(5)
    embedding = random.standard_normal((len(tokens), 64)).astype(np.float32)
    tensors = tiny_llama_tensors() | {"token_embd.weight": encode_tensor(embedding, "F32")}
    for layer in range(2):
        for kind in ("q", "k"):
            norm = 1 + 0.1 * random.standard_normal(16)
            tensors[f"blk.{layer}.attn_{kind}_norm.weight"] = encode_tensor(norm, "F32")
    return write_gguf(path, metadata, tensors), embedding


@contextmanager
def served(path: Path) -> Iterator[tuple[ResidentModel, TestClient[ASGIApp]]]:
    settings = Settings(
        backend="eager", precision="f32", threads=1, kv_memory=MemoryAmount(num_bytes=16 * 2**20)
    )
    model = load_model(settings, ModelFile(model_id="x", path=path), lambda _text, _share: None)
    state = ApplianceState(pool=ModelPool(), limits=ServerLimits())
    state.pool.add(model)
    state.enter("ready")
    try:
        with TestClient(
            create_app(state, access=AccessRules(api_key=None)), base_url="http://127.0.0.1"
        ) as client:
            yield model, client
    finally:
        model.close()


def logits_after(path: Path, token_ids: list[int]) -> np.ndarray:
    logits: np.ndarray = logits_by_chunks(load_eager(path), token_ids, (len(token_ids),))[0]
    return logits


def test_an_embedding_checkpoint_gives_the_state_of_the_end_token(tmp_path: Path) -> None:
    own: dict[str, Value] = {"qwen3.pooling_type": LAST, "tokenizer.ggml.add_eos_token": True}
    path, embedding = write_checkpoint(tmp_path / "embedding.gguf", **own)
    with served(path) as (model, client):
        answer = client.post("/v1/embeddings", json={"model": "x", "input": "hello world"}).json()
        refused = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
        ids = [*model.tokenizer.encode("hello world", parse_special=False), model.tokenizer.eos_token_id]
    vector = np.array(answer["data"][0]["embedding"])
    assert (answer["pooling"], answer["usage"]["prompt_tokens"]) == ("last", len(ids))
    assert refused.status_code == 400
    # The head is the embedding, so the vector's products with it are the logits but for their length.
    products, logits = embedding @ vector, logits_after(path, ids)
    assert np.allclose(products / np.linalg.norm(products), logits / np.linalg.norm(logits), atol=1e-4)


def test_a_ranking_checkpoint_weighs_yes_against_no(tmp_path: Path) -> None:
    path, _ = write_checkpoint(tmp_path / "ranking.gguf", **{"qwen3.pooling_type": RANKING})
    with served(path) as (model, client):
        body = {"query": "hello", "documents": ["world", "no", "yes"], "instruction": "Rank."}
        results = client.post("/v1/rerank", json=body).json()["results"]
        tokenizer = model.tokenizer
    yes, no = (tokenizer.encode(word, parse_special=False)[0] for word in ("yes", "no"))
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    for result in results:
        document = body["documents"][result["index"]]
        text = (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
            'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
            f"<|im_start|>user\n<Instruct>: Rank.\n<Query>: hello\n<Document>: {document}<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        logits = logits_after(path, tokenizer.encode(text, parse_special=True))
        expected = 1 / (1 + math.exp(logits[no] - logits[yes]))
        assert abs(result["relevance_score"] - expected) < 1e-4
