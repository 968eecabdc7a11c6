"""Whether the model's file is here, whole and the one it says it is. Loads no tensor."""

from collections.abc import Callable
from pathlib import Path

from appliance.catalog import ModelEntry, ModelFile
from appliance.download.store import ModelStore
from appliance.download.transfer import sha256_of
from appliance.errors import ApplianceError
from appliance.formats.model_file import open_model_file
from appliance.observe.doctor.finding import Finding, failed, passed, size, warned

Found = ModelFile | ModelEntry
_REMEDY = "check the path, or fetch it again; `appliance list` shows the models"


def check_model(name: str, find: Callable[[str], Found], store: ModelStore) -> Finding:
    """Read the file's own tables and, where a digest is known, every byte of it."""
    try:
        found = find(name)
        entry = found if isinstance(found, ModelEntry) else found.entry
        path = store.installed_path(found) if isinstance(found, ModelEntry) else found.path
        if path is None:
            assert entry is not None
            return _absent(entry, store)
        with open_model_file(path) as file:
            num_bytes = file.size_bytes
        wanted = store.wanted_sha256(entry) if entry and path == store.path(entry) else None
        if wanted is None:
            return passed("model", f"{path} is well-formed, {size(num_bytes)}; no digest is known for it")
        return _compare(entry.model_id if entry else name, path, wanted)
    except (ApplianceError, OSError) as error:
        return failed("model", str(error), _REMEDY)


def num_model_bytes(name: str, find: Callable[[str], Found], store: ModelStore) -> tuple[int, int]:
    """Bytes of the model's file, and how many of them are still to be downloaded; zeros where unknown."""
    try:
        found = find(name)
        if isinstance(found, ModelEntry):
            missing = 0 if store.installed_path(found) else found.size_bytes
            return found.size_bytes, missing
        path = found.path
        files = path.glob("*.safetensors") if path.is_dir() else (path,)
        return sum(file.stat().st_size for file in files), 0
    except (ApplianceError, OSError):
        return 0, 0


def _absent(entry: ModelEntry, store: ModelStore) -> Finding:
    path = store.path(entry)
    if path.is_file():
        return failed(
            "model",
            f"{path} has {path.stat().st_size} bytes and {entry.model_id} has {entry.size_bytes}",
            f"fetch it again with `appliance pull --again {entry.model_id}`",
        )
    return warned(
        "model",
        f"{entry.model_id} is not on this machine; the first start downloads {size(entry.size_bytes)}",
        f"fetch it now with `appliance pull {entry.model_id}`, or name a file of yours",
    )


def _compare(model_id: str, path: Path, wanted: str) -> Finding:
    digest = sha256_of(path)
    if digest == wanted:
        return passed("model", f"{path} is {model_id}, every byte: sha256 {digest[:12]}...")
    return failed(
        "model",
        f"{path} is damaged: its sha256 is {digest[:12]}... and {model_id}'s {wanted[:12]}...",
        f"fetch it again with `appliance pull --again {model_id}`",
    )
