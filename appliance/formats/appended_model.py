"""The trailer of the packaged executable, and the model file that lies inside it. Knows no folders.

The executable is a launcher, a compressed payload, the model file as it is, and this trailer at the very
end; `packaging/launcher/bundle.h` has the same layout for the launcher. The model is mapped where it lies.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"APLBNDL1"
# Magic, payload offset and bytes, unpacked bytes, model offset and bytes, id, model id, version, reserved.
_LAYOUT = struct.Struct("<8s5Q64s64s32s40s")
TRAILER_BYTES = _LAYOUT.size
# A mapping starts at a multiple of this on every system (Windows has the largest granularity).
MODEL_ALIGNMENT = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """Where the parts of an executable lie, in bytes from its start."""

    payload_offset: int
    payload_bytes: int
    unpacked_bytes: int
    model_offset: int
    model_bytes: int
    payload_sha256: str  # hexadecimal; its start names the unpacked tree
    model_id: str
    version: str

    def pack(self) -> bytes:
        """The trailer as it stands in the file. Raises ValueError for a name that does not fit."""
        names = [(self.payload_sha256, 64), (self.model_id, 63), (self.version, 31)]
        for name, limit in names:
            if len(name.encode()) > limit:
                raise ValueError(f"'{name}' has more than {limit} bytes")
        return _LAYOUT.pack(
            MAGIC,
            self.payload_offset,
            self.payload_bytes,
            self.unpacked_bytes,
            self.model_offset,
            self.model_bytes,
            *(name.encode() for name, _ in names),
            b"",
        )


def read_trailer(path: Path) -> Trailer | None:
    """The trailer of an executable of ours; None for every other file, and for one that was cut short."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        if size_bytes < TRAILER_BYTES:
            return None
        file.seek(size_bytes - TRAILER_BYTES)
        trailer = _unpack(file.read(TRAILER_BYTES))
    if trailer is None:
        return None
    ends = (trailer.payload_offset + trailer.payload_bytes, trailer.model_offset + trailer.model_bytes)
    return trailer if max(ends) <= size_bytes - TRAILER_BYTES else None


def _unpack(data: bytes) -> Trailer | None:
    magic, *numbers, digest, model_id, version, _reserved = _LAYOUT.unpack(data)
    if magic != MAGIC:
        return None
    payload_offset, payload_bytes, unpacked_bytes, model_offset, model_bytes = numbers
    return Trailer(
        payload_offset=payload_offset,
        payload_bytes=payload_bytes,
        unpacked_bytes=unpacked_bytes,
        model_offset=model_offset,
        model_bytes=model_bytes,
        payload_sha256=digest.decode("ascii", "replace"),
        model_id=model_id.rstrip(b"\0").decode("utf-8", "replace"),
        version=version.rstrip(b"\0").decode("utf-8", "replace"),
    )
