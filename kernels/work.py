"""What each operation moves and computes, as functions of its shape. Knows no device and no tensor.

Shape letters as in kernels/ops.py. Weights and KV are read once, activations once in and once out: the least
that any kernel can do, so a time made from it is a bound and not a promise.
"""

from dataclasses import dataclass

WIDE, NARROW = 4, 2  # bytes of the residual's float32, and of an activation
# Bytes per element of a matrix with what belongs to it, scales and minima of a group of 32 among them.
WEIGHT_BYTES = {"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}
# Bytes of one stored head element; INT8 adds a float32 scale per head.
KV_BYTES = {"bf16": 2, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes between memory and chip; operations at 16 and at 8 bits (two per multiply-add)."""

    num_bytes: float
    operations: float = 0.0
    int8_operations: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            num_bytes=self.num_bytes + other.num_bytes,
            operations=self.operations + other.operations,
            int8_operations=self.int8_operations + other.int8_operations,
        )

    def times(self, count: int) -> "Work":
        return Work(
            num_bytes=self.num_bytes * count,
            operations=self.operations * count,
            int8_operations=self.int8_operations * count,
        )


def linear(T: int, num_in: int, num_out: int, weight: str) -> Work:
    activations = T * (num_in + num_out) * NARROW
    return Work(
        num_bytes=num_in * num_out * WEIGHT_BYTES[weight] + activations, operations=2 * T * num_in * num_out
    )


def linear_int8_tokens(T: int, num_in: int, num_out: int) -> Work:
    moved = num_in * num_out + T * (num_in + num_out * NARROW)
    return Work(num_bytes=moved, int8_operations=2 * T * num_in * num_out)


def quantize_tokens(T: int, size: int) -> Work:
    return Work(num_bytes=T * size * (NARROW + 1))


def embed(T: int, H: int) -> Work:
    """One row of the table for each token, in and out."""
    return Work(num_bytes=2 * T * H * NARROW)


def rms_norm(T: int, H: int) -> Work:
    return Work(num_bytes=2 * T * H * NARROW)


def add_rms_norm(T: int, H: int) -> Work:
    """x in, residual in and out, norm out."""
    return Work(num_bytes=T * H * (2 * NARROW + 2 * WIDE))


def gated(T: int, size: int) -> Work:
    return Work(num_bytes=T * 3 * size * NARROW)


def select_rows(R: int, H: int) -> Work:
    return Work(num_bytes=2 * R * H * NARROW)


def rope_write_kv(T: int, N: int, K: int, D: int, kv: str) -> Work:
    """Heads in, queries out, pages written; cosines and sines stay in the cache."""
    pages = 2 * K * _head_bytes(D, kv)
    return Work(num_bytes=T * ((2 * N + 2 * K) * D * NARROW + pages))


def rope(T: int, N: int, D: int) -> Work:
    """Heads in and out; cosines and sines stay in the cache."""
    return Work(num_bytes=2 * T * N * D * NARROW)


def write_kv(T: int, K: int, D: int, kv: str) -> Work:
    return Work(num_bytes=T * 2 * K * (D * NARROW + _head_bytes(D, kv)))


def copy_blocks(C: int, block_size: int, K: int, D: int, kv: str) -> Work:
    return Work(num_bytes=2 * C * block_size * 2 * K * _head_bytes(D, kv))


def attention_decode(S: int, context: int, N: int, K: int, D: int, kv: str) -> Work:
    """S sequences of one new token and equal contexts."""
    pages = S * context * 2 * K * _head_bytes(D, kv)
    return Work(num_bytes=pages + 2 * S * N * D * NARROW, operations=4 * S * context * N * D)


def attention_reduce(S: int, num_splits: int, N: int, D: int) -> Work:
    """What splits of contexts leave in float32, each with a sum of exponentials, merged; written and read."""
    partial = S * N * num_splits * (D + 1) * WIDE
    return Work(num_bytes=2 * partial + S * N * D * NARROW, operations=2 * S * N * num_splits * D)


def attention_prefill(T: int, context: int, N: int, K: int, D: int, kv: str) -> Work:
    """T new tokens of one sequence, the last of its context; what comes later is not computed."""
    seen = T * context - T * (T - 1) // 2
    pages = context * 2 * K * _head_bytes(D, kv)
    return Work(num_bytes=pages + 2 * T * N * D * NARROW, operations=4 * seen * N * D)


def _head_bytes(D: int, kv: str) -> int:
    return D * KV_BYTES[kv] + (4 if kv == "int8" else 0)
