"""The models that a client can name: installed, given as a file, or derived of one. Finds, pulls, removes.

Every name goes through the catalogue or the list of derived models, never into a path. Knows what lies on
the disk; does not know what is loaded. Blocking: call it from a worker thread where the disk is touched.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.catalog import Catalog, ModelEntry, ModelFile, is_name, printable
from appliance.derived_models import DerivedModel, DerivedModels, canonical_name, checked_name
from appliance.download.pull import pull
from appliance.download.store import ModelStore
from appliance.download.workspace import PullProgress
from appliance.errors import ApplianceError, InvalidRequest, NotInstalled, UnknownModel

_QUANTIZATION = re.compile(r"(?:^|[-._])(I?Q\d\w*|BF16|F16|F32|MXFP4)(?=[-._])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryModel:
    """One name in the library. `file` is what would be loaded for it."""

    name: str
    file: ModelFile
    size_bytes: int
    modified_s: float
    digest: str  # 64 hexadecimal digits: of the content where it is known, else of the file's identity
    quantization: str
    derived: DerivedModel | None = None

    @property
    def base_id(self) -> str:
        return self.file.model_id

    @property
    def entry(self) -> ModelEntry | None:
        return self.file.entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What a model file says of itself; arrays, which may hold a whole vocabulary, are left out."""

    metadata: dict[str, Any] = field(default_factory=dict)  # scalar values of GGUF or config.json
    num_parameters: int = 0


class ModelLibrary:
    """`files` are models outside the store, such as the one that `--model` names by its path."""

    def __init__(
        self,
        catalog: Catalog,
        store: ModelStore,
        *,
        files: tuple[ModelFile, ...] = (),
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`aliases`, in lower case, are further names of the ids that they lead to."""
        self._catalog = catalog
        self._store = store
        self._files = {file.model_id: file for file in files}
        self._aliases = dict(aliases or {})
        self._derived = DerivedModels(store.models_dir)

    def add_file(self, file: ModelFile) -> None:
        """Let a model outside the store be named."""
        if file.entry is None:
            self._files[file.model_id] = file

    def models(self) -> tuple[LibraryModel, ...]:
        """Every model whose weights are here, and what is derived of them."""
        files = [*self._files.values(), *self._installed()]
        found = [model for file in files if (model := self._model(file.model_id, file))]
        bases = {model.base_id: model for model in found}
        derived = [_derive(bases[d.base], d) for d in self._derived.list() if d.base in bases]
        return (*found, *derived)

    def find(self, name: str) -> LibraryModel:
        """Return the model of that name, alias or `name:latest`. Raises UnknownModel."""
        derived = self._derived.get(name)
        base = derived.base if derived else self._unaliased(name)
        file = self._base_file(base)
        model = self._model(file.model_id, file) if file else None
        if model is None:
            raise self._missing(base)
        return _derive(model, derived) if derived else model

    def base_id(self, name: str) -> str:
        """Return the id that a name stands for; touches no file. Raises UnknownModel."""
        derived = self._derived.get(name)
        name = derived.base if derived else self._unaliased(name)
        return name if name in self._files else self._entry(name).model_id

    def available(self) -> tuple[ModelEntry, ...]:
        """What the catalogue has and this machine has not."""
        return tuple(e for e in self._catalog.entries if self._store.installed_path(e) is None)

    def derived(self, name: str) -> DerivedModel | None:
        return self._derived.get(name)

    def known_digest(self, name: str) -> str:
        """`sha256:` and the digest that a pull must give, or "" where the catalogue knows none."""
        sha256 = self._entry(name).sha256
        return f"sha256:{sha256}" if sha256 else ""

    def pull(self, name: str, report: Callable[[PullProgress], None]) -> None:
        """Install a model of the catalogue. Raises UnknownModel, DownloadFailed, StorageNotWritable."""
        pull(self._entry(name), self._store, report, folder=self._catalog.folder)

    def remove(self, name: str) -> None:
        """Delete a derived model, or an installed one's files. Raises UnknownModel, InvalidRequest."""
        if self._derived.remove(name):
            return
        model = self.find(name)
        if model.entry is None:
            raise InvalidRequest(
                f"'{printable(name)}' is a file outside the model store; delete it yourself", param="model"
            )
        self._store.remove(model.entry)

    def copy(self, source: str, destination: str) -> None:
        """Give a model another name. Raises UnknownModel, InvalidRequest, StorageNotWritable."""
        model = self.find(source)
        old = model.derived or DerivedModel(name="copy", base=model.base_id, created_s=0.0)
        self.save(
            DerivedModel(
                name=self._free_name(destination, field="destination"),
                base=old.base,
                created_s=time.time(),
                system=old.system,
                template=old.template,
                licence=old.licence,
                parameters=old.parameters,
                messages=old.messages,
            )
        )

    def save(self, derived: DerivedModel) -> None:
        self._derived.save(derived)

    def new_name(self, name: str) -> str:
        """Return the canonical form of a name for a derived model. Raises InvalidRequest if it is taken."""
        return self._free_name(name, field="model")

    def read(self, model: LibraryModel) -> FileFacts:
        """Read the file's own facts; none where it cannot be read as one."""
        from appliance.formats.gguf import GGUFFile
        from appliance.formats.model_file import open_model_file

        try:
            with open_model_file(model.file.path) as file:
                described = file.metadata if isinstance(file, GGUFFile) else file.config
                scalars = {k: v for k, v in described.items() if isinstance(v, bool | int | float | str)}
                num_parameters = sum(tensor.num_elements for tensor in file.tensors.values())
        except ApplianceError:
            return FileFacts()
        return FileFacts(metadata=scalars, num_parameters=num_parameters)

    def _installed(self) -> list[ModelFile]:
        return [file for entry in self._catalog.entries if (file := self._installed_file(entry))]

    def _installed_file(self, entry: ModelEntry) -> ModelFile | None:
        path = self._store.installed_path(entry)
        return ModelFile(model_id=entry.model_id, path=path, entry=entry) if path else None

    def _base_file(self, name: str) -> ModelFile | None:
        if name in self._files:
            return self._files[name]
        canonical = canonical_name(name)
        for model_id, file in self._files.items():
            if canonical_name(model_id) == canonical:
                return file
        try:
            return self._installed_file(self._entry(name))
        except UnknownModel:
            return None

    def _entry(self, name: str) -> ModelEntry:
        canonical = canonical_name(name) if is_name(name) else name
        return self._catalog.find(canonical)

    def _unaliased(self, name: str) -> str:
        return self._aliases.get(canonical_name(name), name)

    def _missing(self, name: str) -> UnknownModel:
        try:
            return NotInstalled(self._entry(name).model_id)
        except UnknownModel as error:
            return UnknownModel(printable(name), nearest=error.nearest)

    def _free_name(self, name: str, *, field: str) -> str:
        canonical = checked_name(name, field=field)
        taken = {canonical_name(model_id) for model_id in self._files} | self._aliases.keys()
        taken |= {n for e in self._catalog.entries for n in map(canonical_name, (e.model_id, *e.aliases))}
        if canonical in taken:
            raise InvalidRequest(
                f"'{field}' is '{canonical}', which the catalogue or a model file has; choose another name",
                param=field,
            )
        return canonical

    def _model(self, name: str, file: ModelFile) -> LibraryModel | None:
        try:
            status = file.path.stat()
        except OSError:
            return None
        record = self._store.record(file.entry) if file.entry else None
        identity = f"{file.model_id}:{status.st_size}:{status.st_mtime_ns}"
        known = record.sha256 if record else file.entry.sha256 if file.entry else None
        return LibraryModel(
            name=name,
            file=file,
            size_bytes=_num_bytes(file.path, status.st_size),
            modified_s=status.st_mtime,
            digest=known or hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest(),
            quantization=_quantization(file.path),
        )


def _derive(base: LibraryModel, derived: DerivedModel) -> LibraryModel:
    return LibraryModel(
        name=derived.name,
        file=base.file,
        size_bytes=base.size_bytes,
        modified_s=derived.created_s,
        digest=base.digest,
        quantization=base.quantization,
        derived=derived,
    )


def _num_bytes(path: Path, own_bytes: int) -> int:
    """A file's size; of a folder that of its tensors."""
    if not path.is_dir():
        return own_bytes
    return sum(shard.stat().st_size for shard in path.glob("*.safetensors") if shard.is_file())


def _quantization(path: Path) -> str:
    """What a model file's name says of its precision, as Q4_1; "unknown" where it says nothing."""
    match = _QUANTIZATION.search(path.name)
    return match[1].upper() if match else "unknown"
