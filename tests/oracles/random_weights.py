"""The weights of a random network by tensor name and shape: the same numbers wherever they are made.

Knows numpy only: what runs the other implementation imports this too.
"""

import zlib
from collections.abc import Iterable, Mapping

import numpy as np

Array = np.ndarray


def random_weights(shapes: Mapping[str, Iterable[int]], seed: int) -> dict[str, Array]:
    """Return float32 arrays. Norms lie around one (Gemma's stored ones around zero is its reader's business),
    matrices keep the size of what goes through them, queries and keys are sharper than that."""
    return {name: _weights(name, tuple(shape), seed) for name, shape in shapes.items()}


def _weights(name: str, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    values = rng.standard_normal(shape)
    if name.endswith(".bias"):
        return (0.3 * values).astype(np.float32)
    if len(shape) == 1:
        return (1 + 0.2 * values).astype(np.float32)
    scale = shape[-1] ** -0.5
    if "embed_tokens" in name:
        scale *= 4
    if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")):
        scale *= 2
    return (scale * values).astype(np.float32)


def random_tokens(vocab_size: int, count: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng((seed, 99)).integers(0, vocab_size, count).tolist()
    return tokens
