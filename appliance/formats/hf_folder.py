"""Opens a Hugging Face model folder: config.json and safetensors shards as one set of tensors.

Knows file names and how shards are listed; knows no architecture.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.json_file import Json, read_json
from appliance.formats.packed_linear import PackedLinear, packed_format
from appliance.formats.packed_tensors import PackedTensors
from appliance.formats.safetensors import SafetensorsFile, read_safetensors
from appliance.formats.tensor_file import StoredTensor

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Endings of files that hold Python pickles.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# An index names every tensor: 100 bytes for each of 160,000.
_MAX_INDEX_BYTES = 16 << 20


class HFFolder:
    """An open folder. Tensors have the names of the files; `metadata_*` read config.json.

    A key with dots looks into nested objects: "rope_scaling.factor". A null counts as absent.
    """

    def __init__(
        self, path: Path, config: Json, generation: Json, shards: Mapping[str, SafetensorsFile]
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation
        self.size_bytes = sum(shard.size_bytes for shard in shards.values())
        self._shard_of: Mapping[str, SafetensorsFile] = {
            name: shard for shard in shards.values() for name in shard.tensors
        }
        stored = {name: shard.tensors[name] for name, shard in self._shard_of.items()}
        quantization = self.find("quantization_config")
        self._packed = (
            PackedTensors(packed_format(quantization), stored, self._stored_raw)
            if isinstance(quantization, Mapping)
            else None
        )
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(
            self._packed.tensors() if self._packed else stored
        )

    def tensor(self, name: str) -> StoredTensor:
        """Return a directory entry. Raises BadModelFile if it is absent."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.bad(f"the tensor '{name}' is missing")
        return tensor

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes (rows, row_bytes): a read-only view, or an unpacked matrix of its own.

        Raises BadModelFile if it is absent.
        """
        self.tensor(name)
        packed = self.packed(name)
        return self._stored_raw(name) if packed is None else packed.dense().view(np.uint8)

    def packed(self, name: str) -> PackedLinear | None:
        """Return an AWQ or GPTQ matrix in its integers, None for a plain tensor. Raises BadModelFile."""
        if self._packed is None or name not in self._packed:
            return None
        return self._packed.read(name)

    def metadata_int(self, key: str, default: int | None = None) -> int:
        """Return an integer. Raises BadModelFile if it is missing with no default, or of another type."""
        value = self._present(key, default)
        if type(value) is not int:
            raise self._mistyped(key, value, "an integer")
        return value

    def metadata_float(self, key: str, default: float | None = None) -> float:
        """Return a number as a float. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(key, value, "a number")
        return float(value)

    def metadata_bool(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "a boolean")
        return value

    def metadata_str(self, key: str, default: str | None = None) -> str:
        """Return a text. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._mistyped(key, value, "a text")
        return value

    def find(self, key: str) -> Any:  # Any: JSON
        """Return what config.json holds at a key, or None."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise when this folder contradicts itself."""
        return BadModelFile(f"'{self.path.name}': {message}")

    def close(self) -> None:
        """Let go of the files; views that were handed out stay valid."""
        self._shard_of = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored_raw(self, name: str) -> NDArray[np.uint8]:
        if name not in self._shard_of:
            raise ValueError(f"'{self.path.name}' is closed")
        return self._shard_of[name].raw(name)

    def _present(self, key: str, default: object) -> Any:  # Any: JSON
        value = self.find(key)
        value = default if value is None else value
        if value is None:
            raise self.bad(f"{CONFIG_FILE} has no '{key}'")
        return value

    def _mistyped(self, key: str, value: object, expected: str) -> BadModelFile:
        return self.bad(f"'{key}' of {CONFIG_FILE} is {value!r:.80} and must be {expected}")


def is_model_folder(path: Path) -> bool:
    """Say whether a folder claims to be a model."""
    return (path / CONFIG_FILE).is_file()


def read_hf_folder(path: Path) -> HFFolder:
    """Open and check a folder; no tensor is read.

    Raises BadModelFile naming file and field, UnsupportedModel where the weights are Python pickles.
    """
    if not is_model_folder(path):
        raise BadModelFile(f"the folder '{path}' holds no {CONFIG_FILE}: it is not a model")
    config = read_json(path / CONFIG_FILE)
    generation_file = path / GENERATION_FILE
    generation: Json = read_json(generation_file) if generation_file.is_file() else {}
    return HFFolder(path, config, generation, _open_shards(path))


def _open_shards(path: Path) -> dict[str, SafetensorsFile]:
    if (path / INDEX_FILE).is_file():
        return _open_indexed(path)
    if (path / SINGLE_FILE).is_file():
        return {SINGLE_FILE: read_safetensors(path / SINGLE_FILE)}
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0].name: read_safetensors(found[0])}
    pickles = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickles:
        raise refused_pickle(path / pickles[0])
    raise BadModelFile(f"the folder '{path}' has neither {SINGLE_FILE} nor {INDEX_FILE}; download it again")


def refused_pickle(path: Path) -> UnsupportedModel:
    """Return the error for weights that only Python's unpickler reads."""
    return UnsupportedModel(
        f"'{path.name}' is a PyTorch pickle, which can run any program while it is opened; "
        "get the model as safetensors or GGUF"
    )


def _open_indexed(path: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_json(path / INDEX_FILE, limit=_MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModelFile(f"'{INDEX_FILE}' has no 'weight_map'; download it again")
    for name, file in weight_map.items():
        # Only a name: an index must not lead out of its folder.
        if (
            not isinstance(file, str)
            or not file.endswith(".safetensors")
            or Path(file).name != file
            or "\\" in file
        ):
            raise BadModelFile(
                f"'{INDEX_FILE}' places '{name:.80}' in {file!r:.80}, which is no file beside it"
            )
    shards = {file: _shard(path, file) for file in sorted(set(weight_map.values()))}
    _check_index(weight_map, shards)
    return shards


def _shard(path: Path, file: str) -> SafetensorsFile:
    if not (path / file).is_file():
        raise BadModelFile(f"'{INDEX_FILE}' names {file}, which is not in '{path}'; download it")
    return read_safetensors(path / file)


def _check_index(weight_map: Mapping[str, str], shards: Mapping[str, SafetensorsFile]) -> None:
    for name, file in weight_map.items():
        if name not in shards[file].tensors:
            raise BadModelFile(f"'{INDEX_FILE}' places the tensor '{name}' in {file}, where it is missing")
    for file, shard in shards.items():
        for name in shard.tensors:
            if weight_map.get(name) != file:
                raise BadModelFile(
                    f"'{file}' holds the tensor '{name}', which '{INDEX_FILE}' does not place there"
                )
