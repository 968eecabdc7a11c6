"""AWQ and GPTQ matrices, packed in 32-bit words, to integers with a scale and a minimum per group.

Layouts as AutoAWQ's GEMM kernel and AutoGPTQ write them; both store a matrix as (in, out). Knows no folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.regroup import GROUP, AffineGroups

Words = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Which of eight columns each nibble of a word holds, lowest first.
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """What `quantization_config` says of every packed matrix."""

    method: str  # "awq" or "gptq"
    num_bits: int
    group_size: int  # -1: all inputs of an output share one scale
    zero_offset: int  # GPTQ's first format stores zero points less one
    is_shuffled: bool = False  # groups follow the order of activations

    @property
    def per_word(self) -> int:
        return 32 // self.num_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """One matrix: x[o, i] = scales[g, o] * (quants[i, o] - zeros[g, o]), g = groups[i]."""

    quants: Bytes  # (in, out)
    zeros: NDArray[np.int16]  # (groups, out); up to 256
    scales: Floats  # (groups, out)
    groups: NDArray[np.int64]  # (in)
    num_bits: int

    def dense(self) -> Floats:
        """Return the matrix (out, in) as float32."""
        out = self.quants.astype(np.float32)
        out -= self.zeros[self.groups]
        out *= self.scales[self.groups]
        return np.ascontiguousarray(out.T)

    def affine(self) -> AffineGroups | None:
        """Return it in groups of 32 inputs, or None where inputs of one scale do not lie together."""
        num_inputs = len(self.groups)
        if num_inputs % GROUP:
            return None
        by_group = self.groups.reshape(-1, GROUP)
        if (by_group != by_group[:, :1]).any():
            return None
        own = by_group[:, 0]
        scales = self.scales[own].T
        minima = -(self.scales * self.zeros.astype(np.float32))[own].T
        return AffineGroups(
            quants=np.ascontiguousarray(self.quants.T),
            scales=np.ascontiguousarray(scales),
            minima=np.ascontiguousarray(minima),
            num_bits=self.num_bits,
        )


def packed_format(config: Mapping[str, object]) -> PackedFormat:
    """Read `quantization_config`. Raises UnsupportedModel naming what is not read here."""
    method, bits, group_size = config.get("quant_method"), config.get("bits"), config.get("group_size", 128)
    if method not in ("awq", "gptq"):
        raise UnsupportedModel(
            f"the checkpoint is quantized with {method!r:.40}; AWQ and GPTQ can be read, or get the model in "
            "16 bits or as GGUF"
        )
    known_bits = (4,) if method == "awq" else (4, 8)
    if bits not in known_bits or not isinstance(bits, int):
        raise UnsupportedModel(
            f"the checkpoint's {method} weights have {bits!r:.20} bits; known are {known_bits}"
        )
    version = str(config.get("version") or "gemm").lower()
    if method == "awq" and version != "gemm":
        raise UnsupportedModel(f"the checkpoint's AWQ layout is {version:.40}; gemm can be read")
    if not isinstance(group_size, int) or (group_size != -1 and (group_size <= 0 or group_size % 32)):
        raise UnsupportedModel(
            f"the checkpoint's group size is {group_size!r:.20}; -1 and multiples of 32 can be read"
        )
    is_second = config.get("checkpoint_format") == "gptq_v2"
    return PackedFormat(
        method=str(method),
        num_bits=bits,
        group_size=group_size,
        zero_offset=1 if method == "gptq" and not is_second else 0,
        is_shuffled=method == "gptq" and config.get("desc_act") is True,
    )


def unpack_linear(
    form: PackedFormat, name: str, qweight: Words, qzeros: Words, scales: Floats, g_idx: Words | None
) -> PackedLinear:
    """Unpack one matrix. Raises BadModelFile naming it where its parts do not fit together."""
    if form.method == "awq":
        quants, stored_zeros = _across(qweight, form, _AWQ_ORDER), _across(qzeros, form, _AWQ_ORDER)
    else:
        order = np.arange(form.per_word)
        quants, stored_zeros = _down(qweight, form), _across(qzeros, form, order)
    zeros = stored_zeros.astype(np.int16) + np.int16(form.zero_offset)
    num_inputs, num_outputs = quants.shape
    group_size = num_inputs if form.group_size == -1 else form.group_size
    num_groups = -(-num_inputs // group_size)
    wanted = (num_groups, num_outputs)
    if scales.shape != wanted or zeros.shape != wanted:
        raise BadModelFile(
            f"the matrix '{name}' has {num_inputs} inputs and {num_outputs} outputs in groups of "
            f"{group_size}: scales {scales.shape} and zero points {zeros.shape} must be {wanted}"
        )
    groups = np.arange(num_inputs) // group_size if g_idx is None else g_idx.astype(np.int64)
    if groups.shape != (num_inputs,) or groups.min(initial=0) < 0 or groups.max(initial=0) >= num_groups:
        raise BadModelFile(
            f"the matrix '{name}' has a g_idx that does not give each input one of {num_groups} groups"
        )
    return PackedLinear(quants=quants, zeros=zeros, scales=scales, groups=groups, num_bits=form.num_bits)


def _across(words: Words, form: PackedFormat, order: NDArray[np.int64]) -> Bytes:
    """Unpack (rows, words) to (rows, columns): a word holds neighbouring columns in this order."""
    parts = _parts(words, form)  # (rows, words, per_word)
    out = np.empty(parts.shape, np.uint8)
    out[..., order] = parts
    return out.reshape(len(words), -1)


def _down(words: Words, form: PackedFormat) -> Bytes:
    """Unpack (words, columns) to (rows, columns): a word holds neighbouring rows, the lowest first."""
    return _parts(words, form).transpose(0, 2, 1).reshape(-1, words.shape[1])


def _parts(words: Words, form: PackedFormat) -> Bytes:
    # A word's bytes, lowest first, then each byte's halves.
    parts = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    if form.num_bits == 8:
        return parts
    return np.stack((parts & np.uint8(15), parts >> np.uint8(4)), axis=-1).reshape(*words.shape, 8)
