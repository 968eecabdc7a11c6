"""What this installation consists of: its files' digests and its parts. Changes nothing."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from appliance import paths
from appliance.formats.appended_model import Trailer, read_trailer

MANIFEST_FILE = "manifest.json"
BILL_FILE = "sbom.cdx.json"


def damaged_files() -> Iterator[str]:
    """Name each file that is missing, or differs from what was packaged.

    Raises FileNotFoundError outside a packaged build, which has no manifest.
    """
    manifest = paths.resource_root() / MANIFEST_FILE
    digests: dict[str, str] = json.loads(manifest.read_text("utf-8"))
    tree = Path(sys.executable).parent
    for name, wanted in digests.items():
        file = tree / name
        if not file.is_file():
            yield f"{file} is missing"
        elif _sha256(file) != wanted:
            yield f"{file} is not what was packaged"


def damaged_executable(model_sha256: str | None) -> Iterator[str]:
    """Name what is wrong with the executable file itself: its payload, its model."""
    path = paths.executable_file()
    if path is None:
        return
    trailer = read_trailer(path)
    if trailer is None:
        yield f"{path} is not whole"
        return
    if _sha256(path, trailer.payload_offset, trailer.payload_bytes) != trailer.payload_sha256:
        yield f"{path}: its payload is not what was packaged"
    if model_sha256 not in (None, _sha256(path, trailer.model_offset, trailer.model_bytes)):
        yield f"{path}: the model in it is not {trailer.model_id}"


def shipped_model_id() -> str | None:
    """The model inside the executable."""
    trailer = _own_trailer()
    return trailer.model_id if trailer else None


def payload_sha256() -> str | None:
    """The digest that names this build; None outside the executable."""
    trailer = _own_trailer()
    return trailer.payload_sha256 if trailer else None


def _own_trailer() -> Trailer | None:
    path = paths.executable_file()
    return None if path is None else read_trailer(path)


def components() -> list[tuple[str, str]]:
    """Names and versions of the libraries: from the bill of materials, else of what is installed."""
    bill = paths.resource_root() / BILL_FILE
    if bill.is_file():
        listed = json.loads(bill.read_text("utf-8"))["components"]
        return [(part["name"], part.get("version", "")) for part in listed]
    from importlib.metadata import PackageNotFoundError, requires, version

    found = []
    for requirement in requires(paths.APP_NAME) or []:
        name = requirement.split(";")[0].split("[")[0].rstrip(" <>=!~.,0123456789")
        if "extra ==" not in requirement:
            try:
                found.append((name, version(name)))
            except PackageNotFoundError:
                continue  # a dependency of another system
    return found


def _sha256(path: Path, offset: int = 0, num_bytes: int | None = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        left = path.stat().st_size - offset if num_bytes is None else num_bytes
        while left > 0 and (chunk := file.read(min(left, 2**20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
