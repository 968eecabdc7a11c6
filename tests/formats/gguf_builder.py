"""Writes small, valid GGUF files for tests, and the parts to make broken ones from. Knows no reader of ours.

`write_tiny_llama(path)` gives a whole two-layer model with a byte-level BPE vocabulary.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TYPE_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type id, where the Python value does not say it: Typed(4, 7)."""

    type_id: int
    value: object


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in the file. `dimensions` is innermost first, as stored."""

    type_id: int
    dimensions: tuple[int, ...]
    data: bytes


Value = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float] | Typed

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, Stored | np.ndarray],
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write a file and return its path. Arrays are stored as F32, outermost dimension first."""
    path.write_bytes(gguf_bytes(list(metadata.items()), list(tensors.items()), version, alignment))
    return path


def gguf_bytes(
    metadata: Sequence[tuple[str, Value]],
    tensors: Sequence[tuple[str, Stored | np.ndarray]],
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """Return a file's bytes; pairs, not mappings, so that a name may occur twice."""
    if alignment != 32:
        metadata = [*metadata, ("general.alignment", Typed(4, alignment))]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + metadata_value(value) for key, value in metadata)
    data = b""
    for name, tensor in tensors:
        stored = tensor if isinstance(tensor, Stored) else encode_tensor(tensor, "F32")
        data += bytes(-len(data) % alignment)
        head += tensor_record(name, stored.dimensions, stored.type_id, len(data))
        data += stored.data
    return head + bytes(-len(head) % alignment) + data


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def tensor_record(name: str, dimensions: Sequence[int], type_id: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name) + shape + struct.pack("<IQ", type_id, offset)


def metadata_value(value: Value) -> bytes:
    """Return the type id and the bytes of a value; an int is UINT32 or INT32, a float FLOAT32."""
    if isinstance(value, Typed):
        return struct.pack(f"<I{_FORMATS[value.type_id]}", value.type_id, value.value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, bool | int | float):
        type_id = _scalar_type(value)
        return struct.pack(f"<I{_FORMATS[type_id]}", type_id, value)
    items = list(value)
    if items and isinstance(items[0], str):
        return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))
    type_id = _scalar_type(items[0]) if items else 4
    type_id = 5 if type_id == 4 else type_id
    return struct.pack(f"<IIQ{len(items)}{_FORMATS[type_id]}", 9, type_id, len(items), *items)


def _scalar_type(value: bool | int | float) -> int:
    if isinstance(value, bool):
        return 7
    if isinstance(value, float):
        return 6
    return 4 if value >= 0 else 5


def encode_tensor(values: np.ndarray, type_name: str) -> Stored:
    """Store float values (outermost dimension first) as F32, F16, BF16, Q8_0, Q4_0 or Q4_1."""
    floats = np.ascontiguousarray(values, dtype=np.float32)
    data = _ENCODERS[type_name](floats)
    return Stored(TYPE_IDS[type_name], tuple(reversed(floats.shape)), data)


def _encode_bf16(floats: np.ndarray) -> bytes:
    return (floats.view(np.uint32) >> 16).astype("<u2").tobytes()


def _encode_q8_0(floats: np.ndarray) -> bytes:
    blocks = floats.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    quants = np.rint(blocks * _inverse(scale)[:, None]).clip(-127, 127).astype(np.int8)
    return _joined(scale[:, None].view(np.uint8), quants.view(np.uint8))


def _encode_q4_0(floats: np.ndarray) -> bytes:
    blocks = floats.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1) / 7).astype("<f2")
    quants = (np.rint(blocks * _inverse(scale)[:, None]) + 8).clip(0, 15).astype(np.uint8)
    return _joined(scale[:, None].view(np.uint8), quants[:, :16] | quants[:, 16:] << 4)


def _encode_q4_1(floats: np.ndarray) -> bytes:
    blocks = floats.reshape(-1, 32)
    low = blocks.min(axis=1).astype("<f2")
    scale = ((blocks.max(axis=1) - low.astype(np.float32)) / 15).astype("<f2")
    quants = np.rint((blocks - low.astype(np.float32)[:, None]) * _inverse(scale)[:, None])
    quants = quants.clip(0, 15).astype(np.uint8)
    both = np.stack([scale, low], axis=1)
    return _joined(both.view(np.uint8), quants[:, :16] | quants[:, 16:] << 4)


def _inverse(scale: np.ndarray) -> np.ndarray:
    wide = scale.astype(np.float32)
    return np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)


def _joined(*parts: np.ndarray) -> bytes:
    return np.concatenate(parts, axis=1).tobytes()


_ENCODERS = {
    "F32": lambda floats: floats.astype("<f4").tobytes(),
    "F16": lambda floats: floats.astype("<f2").tobytes(),
    "BF16": _encode_bf16,
    "Q8_0": _encode_q8_0,
    "Q4_0": _encode_q4_0,
    "Q4_1": _encode_q4_1,
}


def byte_tokens() -> list[str]:
    """Return GPT-2's visible character for each of the 256 bytes, in byte order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, next_hidden = [], 0x100
    for byte in range(256):
        characters.append(chr(byte if byte in visible else next_hidden))
        next_hidden += byte not in visible
    return characters


# Ids 0 to 2; then the 256 bytes (byte b is id 3 + b), then one token per merge.
TINY_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TINY_MERGES = (
    *("t h", "th e", "Ġ the", "h e", "l l", "ll o", "he llo"),
    *("Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "i n"),
)


def tiny_vocabulary(
    *,
    control: Sequence[str] = TINY_CONTROL,
    user_defined: Sequence[str] = (),
    merges: Sequence[str] = TINY_MERGES,
    pre: str = "smollm",
) -> dict[str, Value]:
    """Return tokenizer metadata; ids go to control tokens, bytes, merges, user-defined ones, in turn."""
    joined = [merge.replace(" ", "") for merge in merges]
    tokens = [*control, *byte_tokens(), *joined, *user_defined]
    kinds = [3] * len(control) + [1] * (256 + len(joined)) + [4] * len(user_defined)
    metadata: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    for key, text in (("bos", "<|im_start|>"), ("eos", "<|im_end|>"), ("unknown", "<|endoftext|>")):
        if text in control:
            metadata[f"tokenizer.ggml.{key}_token_id"] = tokens.index(text)
    return metadata


def tiny_llama_metadata(**sizes: int) -> dict[str, Value]:
    """Return a whole model's metadata. Sizes are those of TINY_SIZES, changed by `sizes`."""
    size = TINY_SIZES | sizes
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": size["num_layers"],
        "llama.context_length": size["context_length"],
        "llama.embedding_length": size["hidden_size"],
        "llama.feed_forward_length": size["intermediate_size"],
        "llama.attention.head_count": size["num_heads"],
        "llama.attention.head_count_kv": size["num_kv_heads"],
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": size["hidden_size"] // size["num_heads"],
        "llama.vocab_size": len(TINY_CONTROL) + 256 + len(TINY_MERGES),
        **tiny_vocabulary(),
    }


TINY_SIZES = {
    "num_layers": 2,
    "context_length": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "num_kv_heads": 2,
}


def tiny_llama_tensors(seed: int = 0, type_name: str = "F32", **sizes: int) -> dict[str, Stored]:
    """Return random weights: matrices as `type_name`, norms as F32, embeddings tied to the output."""
    size = TINY_SIZES | sizes
    random = np.random.default_rng(seed)
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    kv = hidden // size["num_heads"] * size["num_kv_heads"]
    num_tokens = len(TINY_CONTROL) + 256 + len(TINY_MERGES)
    shapes = {"token_embd.weight": (num_tokens, hidden), "output_norm.weight": (hidden,)}
    for layer in range(size["num_layers"]):
        matrices = {
            "attn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, hidden),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in matrices.items()}
    return {
        name: encode_tensor(_weights(random, shape), "F32" if len(shape) == 1 else type_name)
        for name, shape in shapes.items()
    }


def _weights(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return norms near one, and matrices whose outputs have about the size of their inputs."""
    if len(shape) == 1:
        return 1 + 0.1 * random.standard_normal(shape)
    return random.standard_normal(shape) / np.sqrt(shape[-1])


def write_tiny_llama(path: Path, *, seed: int = 0, type_name: str = "F32", **sizes: int) -> Path:
    """Write a complete random llama model and return its path."""
    return write_gguf(path, tiny_llama_metadata(**sizes), tiny_llama_tensors(seed, type_name, **sizes))
