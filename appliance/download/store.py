"""The models on this disk: where each lies, whether it is whole, what its first pull looked like.

Layout: `<models_dir>/<model id>/<file>`, beside it `record.json`. Knows nothing of sources.
"""

import logging
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from appliance import paths
from appliance.catalog import ModelEntry
from appliance.download.transfer import sha256_of
from appliance.errors import BadModelFile
from appliance.formats.appended_model import read_trailer

logger = logging.getLogger(__name__)
RECORD_FILE = "record.json"
STAGING_FOLDER = ".staging"
PARTIAL_SUFFIX = ".partial"


class InstallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was verified, and what the file looked like then: equal size and time need no second digest."""

    file: str
    size_bytes: int
    mtime_ns: int
    sha256: str
    source: str


class ModelStore:
    """The folder of downloaded models. Creates nothing until something is installed."""

    def __init__(self, models_dir: Path, *, shipped: Path | None = None) -> None:
        self.models_dir = models_dir
        self._shipped = shipped  # the model that came with the program: a file, or inside the executable

    def folder(self, entry: ModelEntry) -> Path:
        return self.models_dir / entry.model_id

    def path(self, entry: ModelEntry) -> Path:
        """Where the model lies once it is installed."""
        return self.folder(entry) / entry.file

    def partial_path(self, entry: ModelEntry) -> Path:
        return self.folder(entry) / (entry.file + PARTIAL_SUFFIX)

    def staging_path(self, entry: ModelEntry) -> Path:
        return self.folder(entry) / STAGING_FOLDER

    def installed_path(self, entry: ModelEntry) -> Path | None:
        """The model's file if it is there with the right size; no digest, so that listings are quick."""
        path = self.path(entry)
        size_bytes = _regular_size(path)
        if size_bytes is None:
            return self._shipped_path(entry)
        if size_bytes != entry.size_bytes:
            logger.warning(
                "%s has %d bytes and the model %d: not a model", path, size_bytes, entry.size_bytes
            )
            return None
        return path

    def verify(
        self, entry: ModelEntry, *, on_progress: Callable[[int], None] = lambda _: None
    ) -> Path | None:
        """The model's file, known to be the right one; None when it is not installed.

        Digests the file only when it has changed since it was last digested. Raises BadModelFile with both
        digests and the remedy.
        """
        path = self.path(entry)
        if _regular_size(path) is None:
            return self._shipped_path(entry)
        record, status = self.record(entry), path.stat()
        if record and (record.size_bytes, record.mtime_ns) == (status.st_size, status.st_mtime_ns):
            digest = record.sha256
        else:
            digest = sha256_of(path, on_progress=on_progress)
        wanted = self.wanted_sha256(entry) or digest
        if digest != wanted or status.st_size != entry.size_bytes:
            raise BadModelFile(
                f"{path} is not {entry.model_id}: it has {status.st_size} bytes and sha256 {digest}, "
                f"wanted are {entry.size_bytes} and {wanted}; fetch it with `appliance pull {entry.model_id}`"
            )
        self._remember(entry, path, digest, source=record.source if record else "found in the store")
        return path

    def _shipped_path(self, entry: ModelEntry) -> Path | None:
        if self._shipped is None or not self._shipped.is_file():
            return None
        trailer = read_trailer(self._shipped)
        if trailer is None:
            size_bytes = self._shipped.stat().st_size
            is_this = (self._shipped.name, size_bytes) == (entry.file, entry.size_bytes)
        else:
            is_this = (trailer.model_id, trailer.model_bytes) == (entry.model_id, entry.size_bytes)
        return self._shipped if is_this else None

    def record(self, entry: ModelEntry) -> InstallRecord | None:
        """What is remembered of the first pull; None when there is none or it cannot be read."""
        try:
            record = msgspec.json.decode((self.folder(entry) / RECORD_FILE).read_bytes(), type=InstallRecord)
        except (OSError, msgspec.DecodeError):
            return None
        return record if record.file == entry.file else None

    def wanted_sha256(self, entry: ModelEntry) -> str | None:
        """The catalogue's digest, else that of the first pull, else None."""
        if entry.sha256:
            return entry.sha256
        record = self.record(entry)
        return record.sha256 if record else None

    def install(self, entry: ModelEntry, *, sha256: str, source: str) -> Path:
        """Move the verified partial file into place and remember its digest."""
        path = self.path(entry)
        # The record comes first: a model without one would be digested again at the next start.
        self._remember(entry, self.partial_path(entry), sha256, source=source)
        self.partial_path(entry).replace(path)
        return path

    def sweep(self, entry: ModelEntry, staging: Path | None) -> None:
        """Remove the partial file, `staging` if given, and folders left empty. The caller holds the lock."""
        with suppress(OSError):
            self.partial_path(entry).unlink()
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for folder in (self.staging_path(entry), self.folder(entry)):
            with suppress(OSError):  # not empty, or never made
                folder.rmdir()

    def remove(self, entry: ModelEntry) -> int:
        """Delete the model, its record and its recorded prompts; what is outside the store stays.

        Returns the bytes freed. Raises StorageNotWritable.
        """
        folder = self.folder(entry)
        with self.lock(entry):
            paths.prompts_file(entry.model_id).unlink(missing_ok=True)
            if folder.is_symlink():
                folder.unlink()
                return 0
            freed = sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                return 0
            except OSError as error:
                raise paths.storage_error(folder, error.strerror or str(error)) from error
            return freed

    @contextmanager
    def lock(self, entry: ModelEntry, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Keep other processes and threads from changing the same model. Raises StorageNotWritable.

        The operating system drops the lock with the process, however that ends.
        """
        from filelock import FileLock, Timeout

        paths.ensure_writable(self.models_dir)
        lock = FileLock(self.models_dir / f".{entry.model_id}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire(poll_interval=0.1)
        try:
            yield
        finally:
            lock.release()

    def _remember(self, entry: ModelEntry, path: Path, sha256: str, *, source: str) -> None:
        status = path.stat()
        record = InstallRecord(
            file=entry.file,
            size_bytes=status.st_size,
            mtime_ns=status.st_mtime_ns,
            sha256=sha256,
            source=source,
        )
        if record == self.record(entry):
            return
        target = self.folder(entry) / RECORD_FILE
        beside = target.with_suffix(".json.partial")
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
            beside.replace(target)
        except OSError as error:
            # A store on a read-only mount serves all the same; it is digested at each start.
            logger.warning("%s cannot be written: %s", target, error.strerror)


def _regular_size(path: Path) -> int | None:
    """Bytes of a regular file, links followed; None, with a warning for a broken link, if it is none."""
    try:
        status = path.stat()
    except OSError as error:
        if path.is_symlink():
            logger.warning("%s is skipped, a link that leads nowhere: %s", path, error.strerror)
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
