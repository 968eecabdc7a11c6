"""What every opened model file offers to those who load weights: names, shapes, bytes. Knows no format."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile
from appliance.formats.ggml_types import GGMLType


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One entry of a tensor directory. `offset` is absolute, in bytes, within the file that holds it."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]  # outermost first: a linear weight is (out, in)
    offset: int
    num_bytes: int
    # Of an AWQ or GPTQ value, which is listed as the float that it stands for.
    packed_bits: int | None = None
    # Whether inputs that share a scale lie apart, as GPTQ's order by activations has it.
    is_shuffled: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, the innermost dimension; a scalar is a row of one."""
        row_length = self.shape[-1] if self.shape else 1
        return row_length // self.type.block_size * self.type.block_bytes


class TensorFile(Protocol):
    """A model's tensors, wherever they lie: a GGUF file with its parts, a folder of safetensors."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def tensor(self, name: str) -> StoredTensor:
        """Return a directory entry. Raises BadModelFile if it is absent."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a read-only view (rows, row_bytes) of a tensor's bytes. Raises BadModelFile if absent."""
        ...

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise when this file contradicts itself."""
        ...
