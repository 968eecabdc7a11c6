"""Writes a random model of the shape of a 1.1-billion-parameter Llama, 8-bit, as GGUF: for speed, not sense.

Its output layer is its embedding, so that one token's step reads every byte of the packed weights.
"""

import struct
from pathlib import Path

import numpy as np

_LAYERS, _HIDDEN, _INNER, _HEADS, _KV_HEADS, _VOCAB = 22, 2048, 5632, 32, 4, 32_000
_ALIGNMENT = 32
_F32, _Q8_0 = 0, 8
_BLOCK = np.dtype([("scale", "<f2"), ("quants", "i1", 32)])
Value = int | float | str | list[str]


def random_q8_0_model(path: Path) -> Path:
    """Write the model unless it is there: 1.1 GB. Returns its path."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    generator = np.random.default_rng(0)
    with part.open("wb") as file:
        file.write(_header())
        for shape, _ in _tensors().values():
            data = _norm(shape[0]) if len(shape) == 1 else _matrix(generator, shape)
            file.write(data + bytes(-len(data) % _ALIGNMENT))
    part.rename(path)
    return path


def _tensors() -> dict[str, tuple[tuple[int, ...], int]]:
    """Each tensor's shape, outermost first, and type."""
    kv = _HIDDEN // _HEADS * _KV_HEADS
    tensors: dict[str, tuple[tuple[int, ...], int]] = {"token_embd.weight": ((_VOCAB, _HIDDEN), _Q8_0)}
    tensors["output_norm.weight"] = ((_HIDDEN,), _F32)
    shapes = {
        "attn_q": (_HIDDEN, _HIDDEN),
        "attn_k": (kv, _HIDDEN),
        "attn_v": (kv, _HIDDEN),
        "attn_output": (_HIDDEN, _HIDDEN),
        "ffn_gate": (_INNER, _HIDDEN),
        "ffn_up": (_INNER, _HIDDEN),
        "ffn_down": (_HIDDEN, _INNER),
    }
    for layer in range(_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = ((_HIDDEN,), _F32)
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = (shape, _Q8_0)
    return tensors


def _header() -> bytes:
    tensors = _tensors()
    metadata = _metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, (shape, type_id) in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _string(name) + dimensions + struct.pack("<IQ", type_id, offset)
        num_bytes = int(np.prod(shape)) * 34 // 32 if type_id == _Q8_0 else shape[0] * 4
        offset += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return head + bytes(-len(head) % _ALIGNMENT)


def _metadata() -> dict[str, Value]:
    return {
        "general.architecture": "llama",
        "general.name": "Random 1.1B",
        "llama.block_count": _LAYERS,
        "llama.context_length": 2048,
        "llama.embedding_length": _HIDDEN,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _HIDDEN // _HEADS,
        "llama.vocab_size": _VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [f"t{index}" for index in range(_VOCAB)],
        "tokenizer.ggml.merges": [],
    }


def _matrix(generator: np.random.Generator, shape: tuple[int, ...]) -> bytes:
    """Values whose products have about the size of their inputs."""
    blocks = np.empty(shape[0] * shape[1] // 32, _BLOCK)
    quants = np.frombuffer(generator.bytes(blocks.size * 32), np.int8).reshape(-1, 32)
    blocks["quants"] = np.maximum(quants, -127)
    # The bytes are spread evenly over -127 to 127: their deviation is 127 / sqrt(3).
    blocks["scale"] = 3**0.5 / 127 / shape[1] ** 0.5
    return blocks.tobytes()


def _norm(size: int) -> bytes:
    return np.ones(size, "<f4").tobytes()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: Value) -> bytes:
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)
