"""What a model is made for: writing texts, embedding them, or ranking them. Read from its file or name."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from appliance.formats.gguf import GGUFFile
from appliance.formats.hf_folder import HFFolder
from appliance.formats.json_file import read_json


class Use(StrEnum):
    """What people load a model for."""

    WRITING = "writing"
    EMBEDDING = "embedding"
    RANKING = "ranking"


class Pooling(StrEnum):
    """Which hidden states make the vector of a text."""

    LAST = "last"
    MEAN = "mean"
    FIRST = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """A model's use, and the pooling that its makers trained: the last token's where they say nothing."""

    use: Use
    pooling: Pooling = Pooling.LAST


WRITING = Purpose(use=Use.WRITING)
_GGUF_POOLING = {1: Pooling.MEAN, 2: Pooling.FIRST, 3: Pooling.LAST}
_GGUF_RANKING = 4
# The file that sentence-transformers writes beside a model, and its flags.
_POOLING_FILE = Path("1_Pooling") / "config.json"
_POOLING_FLAGS = {
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.FIRST,
}


def read_purpose(file: GGUFFile | HFFolder, model_id: str) -> Purpose:
    """Files that say nothing are judged by name. Raises BadModelFile."""
    return _from_gguf(file, model_id) if isinstance(file, GGUFFile) else _from_folder(file, model_id)


def _from_gguf(file: GGUFFile, model_id: str) -> Purpose:
    named = _by_name(f"{model_id} {file.metadata_str('general.name', '')}")
    pooling = file.metadata_int(f"{file.metadata_str('general.architecture')}.pooling_type", 0)
    if pooling == _GGUF_RANKING:
        return Purpose(use=Use.RANKING)
    if pooling in _GGUF_POOLING:
        return Purpose(use=Use.EMBEDDING, pooling=_GGUF_POOLING[pooling])
    return named


def _from_folder(folder: HFFolder, model_id: str) -> Purpose:
    path = folder.path / _POOLING_FILE
    config = read_json(path) if path.is_file() else {}
    for flag, pooling in _POOLING_FLAGS.items():
        if config.get(flag) is True:
            return Purpose(use=Use.EMBEDDING, pooling=pooling)
    return _by_name(f"{model_id} {folder.path.name}")


def _by_name(text: str) -> Purpose:
    words = text.lower()
    if "rerank" in words:
        return Purpose(use=Use.RANKING)
    return Purpose(use=Use.EMBEDDING) if "embed" in words else WRITING
