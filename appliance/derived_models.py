"""Models made of another one and a few settings: an alias, a system prompt, a template, parameters.

Each is one small JSON file in a folder of the model store. Knows no weights and no protocol's requests.
"""

import logging
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from appliance import paths
from appliance.errors import InvalidRequest

_log = logging.getLogger(__name__)
FOLDER = ".derived"
MAX_DERIVED = 1000
# One file each: no separator, no leading dot; the tag's colon becomes `@`, which no name may hold.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}(?::[a-z0-9][a-z0-9._-]{0,39})?")
_PREFIX = "model-"  # a file called con.json or aux.json is a device on Windows


class DerivedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a name adds to its base, an id of the catalogue or of a model file."""

    name: Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}$")]
    base: str
    created_s: float
    system: str | None = None
    template: str | None = None
    licence: str | None = None
    parameters: dict[str, Any] = {}  # JSON, in the names of Ollama's options
    messages: list[dict[str, Any]] = []  # JSON: said before every conversation


def canonical_name(name: str) -> str:
    """`Name:latest` and `name` are the same name."""
    return name.lower().removesuffix(":latest")


class DerivedModels:
    """The stored ones. Read once, then kept: nobody else writes the folder while the appliance runs."""

    def __init__(self, models_dir: Path) -> None:
        self._folder = models_dir / FOLDER
        self._models = {
            model.name: model for model in map(_read, sorted(self._folder.glob("*.json"))) if model
        }

    def list(self) -> tuple[DerivedModel, ...]:
        return tuple(self._models.values())

    def get(self, name: str) -> DerivedModel | None:
        return self._models.get(canonical_name(name))

    def save(self, model: DerivedModel) -> None:
        """Raises InvalidRequest past the limit, StorageNotWritable."""
        if len(self._models) >= MAX_DERIVED and model.name not in self._models:
            raise InvalidRequest(f"there are {MAX_DERIVED} derived models, the most; delete one first")
        path = self._path(model.name)
        beside = path.with_suffix(".partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(model)) + b"\n")
            beside.replace(path)
        except OSError as error:
            raise paths.storage_error(self._folder, error.strerror or str(error)) from error
        self._models[model.name] = model

    def remove(self, name: str) -> bool:
        """Whether there was one of that name. Raises StorageNotWritable."""
        model = self.get(name)
        if model is None:
            return False
        try:
            self._path(model.name).unlink(missing_ok=True)
        except OSError as error:
            raise paths.storage_error(self._folder, error.strerror or str(error)) from error
        del self._models[model.name]
        return True

    def _path(self, name: str) -> Path:
        assert _NAME.fullmatch(name), name
        return self._folder / f"{_PREFIX}{name.replace(':', '@')}.json"


def checked_name(name: str, *, field: str) -> str:
    """Return the canonical form of a name to be given. Raises InvalidRequest where it cannot be one."""
    canonical = canonical_name(name)
    if _NAME.fullmatch(canonical) is None:
        raise InvalidRequest(
            f"'{field}' is {name[:100]!r}, which cannot name a model; use at most 80 letters, digits, '.', "
            "'_' and '-', and a tag after ':' if you like",
            param=field,
        )
    return canonical


def _read(path: Path) -> DerivedModel | None:
    try:
        model = msgspec.json.decode(path.read_bytes(), type=DerivedModel)
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s is skipped, not a derived model: %s", path, error)
        return None
    if path.name != f"{_PREFIX}{model.name.replace(':', '@')}.json":
        _log.warning("%s is skipped: it holds the model '%s'", path, model.name)
        return None
    return model
