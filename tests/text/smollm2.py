"""The part of SmolLM2-135M-Instruct's vocabulary (Apache-2.0) that the expected texts need, as a GGUF file.

Expected ids were made with an independent implementation and the whole vocabulary.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from formats.gguf_builder import write_gguf

DATA = Path(__file__).parent / "data" / "smollm2_subset.json"


@cache
def expected() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def write_smollm2_vocabulary(path: Path) -> Path:
    """Write a file with the tokenizer's metadata and no tensors; ids in between are unused tokens."""
    data = expected()
    texts = [f"[unused {i}]" for i in range(data["num_tokens"])]
    kinds = [5] * len(texts)
    for kind, group in ((3, "control"), (1, "tokens")):
        for text, token_id in data[group].items():
            texts[token_id], kinds[token_id] = text, kind
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": data["merges"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": data["chat_template"],
    }
    return write_gguf(path, metadata, {})
