"""Streams bytes into a file and digests them, bounded in memory. Knows nothing of models or sources."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from appliance.download.workspace import SourceError

# One megabyte: large enough that the interpreter costs nothing, small enough for smooth progress.
CHUNK_BYTES = 2**20
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def join_streams(
    streams: Iterable[IO[bytes]], target: Path, *, limit_bytes: int, on_progress: Callable[[int], None]
) -> None:
    """Write the streams one after the other into `target`, and to the disk.

    Raises SourceError as soon as they hold more than `limit_bytes`, OSError from the disk.
    """
    num_bytes = 0
    with target.open("wb") as output:
        for stream in streams:
            while chunk := _read(stream):
                num_bytes += len(chunk)
                if num_bytes > limit_bytes:
                    raise SourceError(f"it holds more than the {limit_bytes} bytes that the model has")
                output.write(chunk)
                on_progress(num_bytes)
        output.flush()
        os.fsync(output.fileno())


def link_or_copy(origin: Path, target: Path, *, limit_bytes: int, on_progress: Callable[[int], None]) -> None:
    """Give `target` the content of `origin`: a hard link where the file system can, else a copy."""
    try:
        os.link(origin, target)
    except OSError:
        try:
            stream = origin.open("rb")
        except OSError as error:
            raise SourceError(f"it cannot be read: {error.strerror}") from error
        with stream:
            join_streams([stream], target, limit_bytes=limit_bytes, on_progress=on_progress)


def sha256_of(path: Path, *, on_progress: Callable[[int], None] = lambda _: None) -> str:
    """Digest of a file as 64 lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    num_bytes = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            num_bytes += count
            on_progress(num_bytes)
    return digest.hexdigest()


def _read(stream: IO[bytes]) -> bytes:
    """One chunk. An error of the reading side is the source's; one of the writing side is the disk's."""
    try:
        return stream.read(CHUNK_BYTES)
    except OSError as error:
        raise SourceError(f"it cannot be read: {error.strerror or error}") from error


def is_disk_full(error: OSError) -> bool:
    return error.errno in _FULL
