"""The text side of an opened model, whichever kind of file it is."""

from pathlib import Path

from appliance.formats.gguf import GGUFFile
from appliance.formats.hf_folder import HFFolder
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.hf_tokenizer import chat_template_of, tokenizer_from_folder
from appliance.text.tokenizer import Tokenizer


def read_tokenizer(file: GGUFFile | HFFolder, cache: Path | None = None) -> Tokenizer:
    """Build the model's tokenizer. Raises BadModelFile or UnsupportedModel.

    `cache` is a folder for what takes long to make of a file; a GGUF file is quick without.
    """
    return tokenizer_from_gguf(file) if isinstance(file, GGUFFile) else tokenizer_from_folder(file, cache)


def read_template(file: GGUFFile | HFFolder) -> str:
    """Return the source of the model's chat template, or "" where it has none."""
    if isinstance(file, GGUFFile):
        return file.metadata_str("tokenizer.chat_template", "")
    return chat_template_of(file)
