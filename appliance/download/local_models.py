"""Models that other programs have put on this machine, found and used where they lie. Changes nothing.

Knows how three of them lay out their folders: Hugging Face's cache, Ollama, LM Studio; and what a user has
dropped into the models folder. Looks at names and small manifests, at no weights.
"""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance import paths
from appliance.catalog import ModelFile, is_later_part

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_MAX_MANIFEST_BYTES = 1 << 20
# A projector for images lies beside some models and is none.
_PROJECTOR = "mmproj"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model that is here already: what it is called, where it lies, whose it is."""

    name: str
    path: Path
    origin: str
    size_bytes: int

    def answers_to(self, name: str) -> bool:
        """Whether a user may mean it: by its name, the last part of it, or its file's name."""
        wanted = name.lower()
        own = self.name.lower()
        last = own.rsplit("/", 1)[-1]
        return wanted in {own, last, last.removesuffix(":latest"), self.path.name.lower()}

    def as_file(self) -> ModelFile:
        return ModelFile(model_id=self.name.rsplit("/", 1)[-1], path=self.path)


def find_local_models(models_dir: Path) -> list[LocalModel]:
    """Everything found, the models folder first. A folder that cannot be read is passed over."""
    found: list[LocalModel] = []
    places = (
        (_in_models_dir, (models_dir,)),
        (_in_hf_cache, (paths.hf_cache_dir(),)),
        (_in_ollama, paths.ollama_dirs()),
        (_in_lm_studio, paths.lm_studio_dirs()),
    )
    for look, folders in places:
        for folder in folders:
            with suppress(OSError):
                found += sorted(look(folder), key=lambda model: model.name)
    return found


def find_local_model(name: str, models_dir: Path) -> LocalModel | None:
    """The first that a user may mean by a name."""
    return next((model for model in find_local_models(models_dir) if model.answers_to(name)), None)


def _in_models_dir(folder: Path) -> Iterator[LocalModel]:
    yield from _files(folder, "*.gguf", "models folder")
    for inner in folder.glob("[!.]*/"):
        yield from _files(inner, "*.gguf", "models folder")
        yield from _folder(inner, inner.name, "models folder")


def _in_hf_cache(folder: Path) -> Iterator[LocalModel]:
    for repository in folder.glob("models--*--*/"):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(repository)
        if snapshot is not None:
            yield from _folder(snapshot, name, "Hugging Face")
            yield from _files(snapshot, "*.gguf", "Hugging Face")


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that `main` names, else the newest."""
    snapshots = repository / "snapshots"
    with suppress(OSError, UnicodeDecodeError):
        commit = (repository / "refs" / "main").read_text(encoding="ascii").strip()
        if re.fullmatch(r"[0-9a-f]{7,64}", commit) and (snapshots / commit).is_dir():
            return snapshots / commit
    folders = [path for path in snapshots.glob("*/") if path.is_dir()]
    return max(folders, key=lambda path: path.stat().st_mtime, default=None)


def _in_ollama(folder: Path) -> Iterator[LocalModel]:
    for manifest in (folder / "manifests").glob("*/*/*/*"):
        namespace, model, tag = manifest.parts[-3:]
        blob = _ollama_blob(manifest, folder)
        size_bytes = None if blob is None else _size(blob)
        if blob is not None and size_bytes:
            owner = "" if namespace == "library" else f"{namespace}/"
            yield LocalModel(name=f"{owner}{model}:{tag}", path=blob, origin="Ollama", size_bytes=size_bytes)


def _ollama_blob(manifest: Path, folder: Path) -> Path | None:
    """The weights that a manifest names; only a well-formed digest becomes a path."""
    with suppress(OSError, ValueError, RecursionError):
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        content = json.loads(manifest.read_bytes())
        layers = content.get("layers") if isinstance(content, dict) else None
        for layer in layers if isinstance(layers, list) else ():
            if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
                digest = _DIGEST.fullmatch(str(layer.get("digest")))
                return folder / "blobs" / f"sha256-{digest[1]}" if digest else None
    return None


def _in_lm_studio(folder: Path) -> Iterator[LocalModel]:
    for repository in folder.glob("*/*/"):
        yield from _files(repository, "*.gguf", "LM Studio")
        yield from _folder(repository, f"{repository.parent.name}/{repository.name}", "LM Studio")


def _files(folder: Path, pattern: str, origin: str) -> Iterator[LocalModel]:
    for path in folder.glob(pattern):
        size_bytes = _size(path)
        if size_bytes is None and path.is_symlink():
            logger.warning("%s is skipped, a link that leads to no file", path)
        if size_bytes and not is_later_part(path) and not path.name.lower().startswith(_PROJECTOR):
            yield LocalModel(name=path.stem, path=path, origin=origin, size_bytes=size_bytes)


def _folder(folder: Path, name: str, origin: str) -> Iterator[LocalModel]:
    if (folder / "config.json").is_file():
        size_bytes = sum(_size(path) or 0 for path in folder.glob("*.safetensors"))
        yield LocalModel(name=name, path=folder, origin=origin, size_bytes=size_bytes)


def _size(path: Path) -> int | None:
    """Bytes of a regular file, links followed; None where there is none or it cannot be seen."""
    with suppress(OSError):
        return path.stat().st_size if path.is_file() else None
    return None
