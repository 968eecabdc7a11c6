"""Puts the one file together: launcher, compressed tree, model, trailer. Knows no PyInstaller."""

import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from appliance.formats.appended_model import MODEL_ALIGNMENT, Trailer

# Higher levels take minutes more for a few megabytes.
COMPRESSION_LEVEL = 9
WINDOW_LOG = 27  # the launcher's limit; 128 MiB find repeats across torch's libraries
_CHUNK_BYTES = 2**20


def write_executable(
    output: Path, *, launcher: Path, tree: Path, model: Path, model_id: str, version: str
) -> Trailer:
    """Write `output`, equal byte for byte for equal inputs. The unpacked `tree` becomes the payload."""
    beside = output.with_name(output.name + ".partial")
    with beside.open("w+b") as file:
        file.write(launcher.read_bytes())
        payload_offset = file.tell()
        unpacked_bytes = _write_payload(file, tree)
        payload_bytes = file.tell() - payload_offset
        model_offset = _pad(file)
        with model.open("rb") as source:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
        trailer = Trailer(
            payload_offset=payload_offset,
            payload_bytes=payload_bytes,
            unpacked_bytes=unpacked_bytes,
            model_offset=model_offset,
            model_bytes=file.tell() - model_offset,
            payload_sha256=_digest(file, payload_offset, payload_bytes),
            model_id=model_id,
            version=version,
        )
        file.seek(0, 2)
        file.write(trailer.pack())
    beside.chmod(0o755)
    beside.replace(output)
    return trailer


def _write_payload(file: BinaryIO, tree: Path) -> int:
    """Append the tree as tar in zstd. Returns how many bytes it unpacks to."""
    settings = zstandard.ZstdCompressionParameters.from_level(
        COMPRESSION_LEVEL, window_log=WINDOW_LOG, threads=-1, write_checksum=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=settings)
    unpacked_bytes = 0
    with (
        compressor.stream_writer(file, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in _members(tree):
            info = _plain(archive.gettarinfo(path, path.relative_to(tree).as_posix()))
            unpacked_bytes += info.size
            if not info.isreg():
                archive.addfile(info)
                continue
            with path.open("rb") as content:
                archive.addfile(info, content)
    return unpacked_bytes


def _members(tree: Path) -> Iterator[Path]:
    yield from sorted(tree.rglob("*"))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs from build to build: owner, time, and all of the mode but `executable`."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
    return info


def _pad(file: BinaryIO) -> int:
    file.write(b"\0" * (-file.tell() % MODEL_ALIGNMENT))
    return file.tell()


def _digest(file: BinaryIO, offset: int, num_bytes: int) -> str:
    file.seek(offset)
    digest, left = hashlib.sha256(), num_bytes
    while left:
        chunk = file.read(min(left, _CHUNK_BYTES))
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()
