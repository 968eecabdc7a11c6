"""The vocabulary of a GGUF file as Hugging Face publishes it: a folder with a long tokenizer.json.

Made as their converter makes one of a sentencepiece model: every cut of a piece into two pieces is a merge.
"""

import json
import struct
from pathlib import Path

from appliance.formats.gguf import read_gguf
from appliance.text.sentencepiece import SPACE
from appliance.text.vocabulary import TokenKind, Vocabulary, vocabulary_from_gguf


def write_folder(source: Path, folder: Path) -> Path:
    """Write the folder, with one weight of one number."""
    with read_gguf(source) as file:
        vocabulary = vocabulary_from_gguf(file)
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text", "eos_token_id": 1}))
    (folder / "tokenizer.json").write_text(json.dumps(_content(vocabulary), ensure_ascii=False, indent=2))
    return folder


def _content(vocabulary: Vocabulary) -> dict[str, object]:
    added = [
        {
            "id": i,
            "content": vocabulary.texts[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocabulary.is_steering(i),
        }
        for i in vocabulary.ids_of(TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": dict(vocabulary.ids),
            "merges": _merges(vocabulary),
        },
    }


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    ids = vocabulary.ids
    merges: list[tuple[str, str]] = []
    for text in vocabulary.texts:  # those of lower ids were made first
        cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
        known = [(left, right) for left, right in cuts if left in ids and right in ids]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges
