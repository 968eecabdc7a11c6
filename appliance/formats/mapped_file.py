"""A whole file as read-only memory, opened without reading it. Knows no format."""

import mmap
import os
import stat
from pathlib import Path

from appliance.errors import BadModelFile


def map_file(path: Path, *, smallest: int, kind: str) -> mmap.mmap:
    """Map a file of at least `smallest` bytes. Raises BadModelFile; `kind` names what it should be."""
    try:
        # Looked at before it is opened: opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadModelFile(f"'{path}' is not a regular file; name a {kind} file")
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes < smallest:
                raise BadModelFile(
                    f"'{path.name}' has {num_bytes} bytes and a {kind} header has at least {smallest}; "
                    "download it again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadModelFile(f"the model file '{path}' cannot be opened: {reason}") from error
