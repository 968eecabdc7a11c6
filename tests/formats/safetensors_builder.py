"""Writes safetensors files and Hugging Face folders for tests. Knows no reader of ours."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8"}


def bf16(values: np.ndarray) -> np.ndarray:
    """Return the values cut to bfloat16, as the uint16 that `safetensors_bytes` writes as BF16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def safetensors_bytes(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, array in tensors.items():
        stored = np.ascontiguousarray(array).tobytes()
        dtype = "BF16" if array.dtype == np.uint16 else _DTYPES[array.dtype.name]
        offsets = [len(data), len(data) + len(stored)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += stored
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a file's bytes; `length` is the header's stated one where it lies."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def write_hf_folder(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    num_shards: int = 1,
    others: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder: one file, or shards with their index. `others` are further JSON files by name."""
    path.mkdir(parents=True, exist_ok=True)
    for name, value in {"config.json": config, **(others or {})}.items():
        (path / name).write_text(json.dumps(value), encoding="utf-8")
    if num_shards == 1:
        (path / "model.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
        return path
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        own = dict(list(tensors.items())[shard::num_shards])
        (path / file).write_bytes(safetensors_bytes(own))
        weight_map |= dict.fromkeys(own, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path
