"""Opens whatever a path names as a model: a GGUF file, a Hugging Face folder, a file in one."""

from pathlib import Path

from appliance.errors import UnsupportedModel
from appliance.formats.gguf import GGUFFile, read_gguf
from appliance.formats.hf_folder import HFFolder, is_model_folder, read_hf_folder, refused_pickle

PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# How a pickle or a zip of pickles begins; protocol 2 and later have 0x80 and the number.
_PICKLE_MAGICS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


def open_model_file(path: Path) -> GGUFFile | HFFolder:
    """Open and check a model; no tensor is read. Raises BadModelFile or UnsupportedModel with the remedy."""
    if path.is_dir():
        return read_hf_folder(path)
    if path.suffix == ".safetensors":
        if not is_model_folder(path.parent):
            raise UnsupportedModel(
                f"'{path.name}' holds tensors alone; a model also needs its config.json and tokenizer.json: "
                "put them beside it"
            )
        return read_hf_folder(path.parent)
    if path.suffix in PICKLE_ENDINGS and _is_pickle(path):
        raise refused_pickle(path)
    return read_gguf(path)


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_PICKLE_MAGICS)
    except OSError:
        return False
