"""The catalogue: models.toml -> ModelEntry, and what a name or a path given by a user means.

Reads one file and looks at no model; where models are kept and how they come is `appliance.download`'s.
"""

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from appliance import paths
from appliance.errors import BadModelFile, BadSetting, UnknownModel

MAX_NAME_CHARS = 100
# What may name a folder of the store: no separator, no leading dot, nothing that a shell or Windows expands.
ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,99}$"
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"
# A pin and nothing else: an option or an address in its place would reach pip's command line.
PIN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*$"
MEMBER_PATTERN = r"^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._/-]*$"
# How the files of a model in parts are named.
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}

Pin = Annotated[str, msgspec.Meta(pattern=PIN_PATTERN)]
Member = Annotated[str, msgspec.Meta(pattern=MEMBER_PATTERN)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, msgspec.Meta(gt=0)]


class WheelSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="wheel"
):
    """Files inside pinned wheels of a Python package index; several are parts, joined in their order."""

    requirements: Annotated[tuple[Pin, ...], msgspec.Meta(min_length=1)]
    parts: Annotated[tuple[Member, ...], msgspec.Meta(min_length=1)]


class HubSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="hf"
):
    """A file of a Hugging Face repository at a revision."""

    repository: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    file: Member
    revision: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "main"


class FileSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="file"
):
    """A file of this machine or of a mounted one; relative paths start at the folder of models.toml."""

    path: str


Source = WheelSource | HubSource | FileSource


class SamplingDefaults(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the model's makers recommend; None leaves the engine's own default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class TemplateQuirks(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where the model's chat template differs from what clients send."""

    thinking_variable: str | None = None  # template variable that turns visible reasoning on and off
    has_system_role: bool = True  # False: a system message goes in front of the first user message
    needs_alternation: bool = False  # True: neighbouring messages of one role are joined


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of models.toml."""

    model_id: Annotated[str, msgspec.Meta(pattern=ID_PATTERN)] = msgspec.field(name="id")
    name: str
    description: str
    architecture: str  # as in the file's metadata; the loader decides whether it is supported
    num_parameters: Positive = msgspec.field(name="parameters")
    context_length: Positive = msgspec.field(name="context")
    licence: str
    licence_url: str | None = None
    file: Annotated[str, msgspec.Meta(pattern=FILE_PATTERN)]
    size_bytes: Positive = msgspec.field(name="size")
    sha256: Sha256 | None = None  # None: recorded at the first pull and held to afterwards
    is_verified: bool = msgspec.field(name="verified", default=False)  # someone has pulled and run it
    aliases: tuple[Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)], ...] = ()
    tags: tuple[str, ...] = ()
    sampling: SamplingDefaults = SamplingDefaults()
    template: TemplateQuirks = TemplateQuirks()
    keep_16_bit: tuple[str, ...] = ()  # matrices that int8-mixed holds in 16 bits, such as "3.down"
    sources: Annotated[tuple[Source, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model on disk: the id clients will use, the file, and its catalogue entry if it has one."""

    model_id: str
    path: Path
    entry: ModelEntry | None = None


class Catalog:
    """Every model that is known by name."""

    def __init__(self, entries: tuple[ModelEntry, ...], *, folder: Path) -> None:
        self.entries = entries
        self.folder = folder  # relative `file` sources start here
        self._by_name = {name.lower(): e for e in entries for name in (e.model_id, *e.aliases)}

    @classmethod
    def load(cls, path: Path | None = None) -> "Catalog":
        """Read the shipped models.toml, or another. Raises BadSetting naming the table and the field."""
        try:
            path = paths.catalogue_file() if path is None else path
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadSetting(
                f"the catalogue {path or paths.CATALOGUE_FILE} cannot be read: {error}"
            ) from error
        entries = tuple(_entry(model_id, table, path) for model_id, table in tables.items())
        _check_names(entries, path)
        return cls(entries, folder=path.absolute().parent)

    def find(self, name: str) -> ModelEntry:
        """Return the entry of that id or alias, in any case. Raises UnknownModel with the nearest names.

        Touches no file: a name from a client cannot reach the disk through here.
        """
        entry = self._by_name.get(name.lower()) if is_name(name) else None
        if entry is None:
            raise UnknownModel(printable(name), nearest=self._nearest(name))
        return entry

    def _nearest(self, name: str) -> tuple[str, ...]:
        if len(name) > MAX_NAME_CHARS:
            return ()
        close = difflib.get_close_matches(name.lower(), self._by_name, n=6, cutoff=0.5)
        # An alias and its id are one suggestion, not two.
        ids = dict.fromkeys(self._by_name[match].model_id for match in close)
        return tuple(ids)[:3]


def is_name(text: str) -> bool:
    """Whether `text` can name a model at all, as opposed to a path or an attack."""
    return re.match(NAME_PATTERN, text) is not None and not text.endswith("\n")


def resolve_model(name_or_path: str, catalog: Catalog) -> ModelFile | ModelEntry:
    """Say what a user means: a file of theirs, or a catalogue entry.

    With a separator or the ending of a model file it is a path; a catalogue name comes before a file or
    folder of that name in the working folder. Raises UnknownModel, or BadModelFile for a folder without a
    model.
    """
    if _looks_like_path(name_or_path):
        return _model_file(paths.expand_home(Path(name_or_path)))
    try:
        return catalog.find(name_or_path)
    except UnknownModel:
        if is_name(name_or_path) and (Path(name_or_path).is_file() or folder_model(Path(name_or_path))):
            return _model_file(Path(name_or_path))
        raise


def printable(text: str) -> str:
    """`text` as it may stand in a message: short, one line, valid UTF-8."""
    clean = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: MAX_NAME_CHARS + 1])
    return clean if len(text) <= MAX_NAME_CHARS else clean[:MAX_NAME_CHARS] + "..."


def _looks_like_path(text: str) -> bool:
    separators = {"/", os.sep, os.altsep or os.sep}
    return any(s in text for s in separators) or text.lower().endswith((".gguf", ".safetensors"))


def folder_model(path: Path) -> Path | None:
    """What a folder holds as a model: itself, where it has a config.json, or its only GGUF file."""
    if (path / "config.json").is_file():
        return path
    files = [p for p in path.glob("*.gguf") if p.is_file() and not is_later_part(p)]
    models = [p for p in files if not p.name.lower().startswith("mmproj")]
    return models[0] if len(models) == 1 else None


def is_later_part(path: Path) -> bool:
    """Whether a name says that this is another than the first file of a model in several."""
    part = _PART.search(path.name)
    return part is not None and int(part[1]) != 1


def _model_file(path: Path) -> ModelFile:
    try:
        exists = "\0" not in str(path) and path.exists()
    except OSError as error:  # no permission on the way, or a name too long for the file system
        raise BadModelFile(f"{printable(str(path))} cannot be opened: {error.strerror}") from error
    if not exists:
        raise UnknownModel(printable(str(path)), nearest=_neighbours(path))
    is_folder = path.is_dir()
    model = folder_model(path) if is_folder else path
    if model is None:
        inside = ", ".join(printable(p.name) for p in sorted(path.glob("*.gguf"))[:5])
        hint = (
            f"name a file in it, such as {inside}" if inside else "it holds no .gguf file and no config.json"
        )
        raise BadModelFile(f"{printable(str(path))} is a folder, not a model file; {hint}")
    # A name of arbitrary bytes still gives clients an id of valid UTF-8.
    name = model.absolute().name if model.is_dir() else model.stem
    return ModelFile(model_id=os.fsencode(name).decode("utf-8", "replace"), path=model.absolute())


def _neighbours(path: Path) -> tuple[str, ...]:
    """The most alike model files beside a path that does not exist."""
    if "\0" in str(path) or not path.parent.is_dir():
        return ()
    files = {p.name: printable(str(p)) for p in path.parent.glob("*.gguf") if p.is_file()}
    return tuple(files[name] for name in difflib.get_close_matches(path.name, files, n=3, cutoff=0.5))


def _entry(model_id: str, table: object, path: Path) -> ModelEntry:
    if not isinstance(table, dict):
        raise BadSetting(f"'{model_id}' in {path} is not a table")
    try:
        entry = msgspec.convert({**table, "id": model_id}, ModelEntry)
    except msgspec.ValidationError as error:
        raise BadSetting(f"the table '{model_id}' of {path}: {error}") from error
    if model_id.split(".")[0] in _WINDOWS_DEVICES:
        raise BadSetting(f"'{model_id}' in {path} is a device name on Windows; choose another")
    return entry


def _check_names(entries: tuple[ModelEntry, ...], path: Path) -> None:
    owners: dict[str, str] = {}
    for entry in entries:
        for name in (entry.model_id, *entry.aliases):
            first = owners.setdefault(name.lower(), entry.model_id)
            if first != entry.model_id:
                raise BadSetting(f"'{name}' in {path} names both '{first}' and '{entry.model_id}'")
