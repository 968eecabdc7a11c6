"""The matrices of an AWQ or GPTQ checkpoint under their plain names. Knows which tensors make up one.

`x.qweight`, `x.qzeros`, `x.scales` and perhaps `x.g_idx` are listed as `x.weight`, of float32; they are
unpacked only when somebody reads them.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile
from appliance.formats.ggml_types import GGMLType
from appliance.formats.packed_linear import PackedFormat, PackedLinear, unpack_linear
from appliance.formats.tensor_file import StoredTensor

Raw = Callable[[str], NDArray[np.uint8]]
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_SCALE_TYPES = {GGMLType.F16: np.float16, GGMLType.F32: np.float32}


class PackedTensors:
    """Raises BadModelFile naming a part that is missing."""

    def __init__(self, form: PackedFormat, stored: Mapping[str, StoredTensor], raw: Raw) -> None:
        self._form = form
        self._stored = stored
        self._raw = raw
        self._bases = {
            f"{base}.weight": base for name in stored if (base := name.removesuffix(".qweight")) != name
        }

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the directory with plain names in place of the parts."""
        parts = {f"{base}.{part}" for base in self._bases.values() for part in _PARTS}
        plain = {name: tensor for name, tensor in self._stored.items() if name not in parts}
        return plain | {name: self._entry(name) for name in self._bases}

    def __contains__(self, name: str) -> bool:
        return name in self._bases

    def read(self, name: str) -> PackedLinear:
        """Unpack one matrix. Raises BadModelFile where its parts do not fit together."""
        base = self._bases[name]
        scales = self._part(base, "scales", *_SCALE_TYPES)
        values = self._raw(scales.name).view(_SCALE_TYPES[scales.type]).reshape(scales.shape)
        g_idx = self._words(base, "g_idx") if f"{base}.g_idx" in self._stored else None
        return unpack_linear(
            self._form,
            name,
            self._words(base, "qweight"),
            self._words(base, "qzeros"),
            values.astype(np.float32),
            g_idx,
        )

    def _entry(self, name: str) -> StoredTensor:
        base = self._bases[name]
        rows, columns = self._part(base, "qweight", GGMLType.I32).shape
        for part in ("qzeros", "scales"):
            self._part(base, part, *GGMLType)
        if self._form.method == "awq":
            shape = (columns * self._form.per_word, rows)
        else:
            shape = (columns, rows * self._form.per_word)
        return StoredTensor(
            name=name,
            type=GGMLType.F32,
            shape=shape,
            offset=0,
            num_bytes=4 * shape[0] * shape[1],
            packed_bits=self._form.num_bits,
            is_shuffled=self._form.is_shuffled,
        )

    def _words(self, base: str, part: str) -> NDArray[np.int32]:
        tensor = self._part(base, part, GGMLType.I32)
        words: NDArray[np.int32] = self._raw(tensor.name).view("<i4").reshape(tensor.shape)
        return words

    def _part(self, base: str, part: str, *types: GGMLType) -> StoredTensor:
        tensor = self._stored.get(f"{base}.{part}")
        if tensor is None:
            raise BadModelFile(f"the tensor '{base}.{part}' is missing")
        num_dimensions = 1 if part == "g_idx" else 2
        if tensor.type not in types or len(tensor.shape) != num_dimensions:
            raise BadModelFile(
                f"the tensor '{tensor.name}' is {tensor.type.name} {tensor.shape} and must be "
                f"{types[0].name} of {num_dimensions} dimensions"
            )
        return tensor
