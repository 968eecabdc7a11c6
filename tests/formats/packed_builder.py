"""Writes AWQ and GPTQ matrices from the formats' descriptions, bit by bit. Knows no reader of ours."""

from collections.abc import Mapping

import numpy as np

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(values: list[int], num_bits: int) -> int:
    """Return the signed word that holds these, the first in the lowest bits."""
    word = sum(int(value) << (num_bits * i) for i, value in enumerate(values))
    return word - (1 << 32) if word >> 31 else word


def pack_across(values: np.ndarray, num_bits: int, order: tuple[int, ...]) -> np.ndarray:
    per_word = 32 // num_bits
    rows = [
        [
            pack([row[start + order[i]] for i in range(per_word)], num_bits)
            for start in range(0, len(row), per_word)
        ]
        for row in values
    ]
    return np.array(rows, dtype=np.int32)


def pack_down(values: np.ndarray, num_bits: int) -> np.ndarray:
    return np.ascontiguousarray(pack_across(values.T, num_bits, tuple(range(32 // num_bits))).T)


def quantized(
    base: str,
    matrix_OI: np.ndarray,
    config: Mapping[str, object],
    *,
    is_symmetric: bool = False,
    order: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the tensors of a matrix quantized here, and the float32 matrix that they stand for.

    `order` is the order of activations: its first inputs share the first scale, and so on.
    """
    num_bits, method = int(str(config["bits"])), config["quant_method"]
    num_outputs, num_inputs = matrix_OI.shape
    size = num_inputs if config["group_size"] == -1 else int(str(config["group_size"]))
    groups = np.empty(num_inputs, np.int64)
    groups[np.arange(num_inputs) if order is None else order] = np.arange(num_inputs) // size
    num_groups, top = -(-num_inputs // size), (1 << num_bits) - 1
    scales = np.empty((num_groups, num_outputs), np.float32)
    zeros = np.empty((num_groups, num_outputs), np.int64)
    for group in range(num_groups):
        own = matrix_OI[:, groups == group]
        low, high = np.minimum(own.min(axis=1), 0), np.maximum(own.max(axis=1), 0)
        if is_symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales[group] = ((high - low) / top).astype(np.float16)
        zeros[group] = (top + 1) // 2 if is_symmetric else np.clip(np.round(-low / scales[group]), 1, top)
    quants = np.clip(np.round(matrix_OI.T / scales[groups]) + zeros[groups], 0, top).astype(np.int64)
    values = (scales[groups] * (quants - zeros[groups])).T.astype(np.float32)
    word_order = AWQ_ORDER if method == "awq" else tuple(range(32 // num_bits))
    stores_less = method == "gptq" and config.get("checkpoint_format") != "gptq_v2"
    tensors = {
        f"{base}.qweight": pack_across(quants, num_bits, word_order)
        if method == "awq"
        else pack_down(quants, num_bits),
        f"{base}.qzeros": pack_across(zeros - 1 if stores_less else zeros, num_bits, word_order),
        f"{base}.scales": scales.astype(np.float16),
    }
    if method == "gptq":
        tensors[f"{base}.g_idx"] = groups.astype(np.int32)
    return tensors, values
