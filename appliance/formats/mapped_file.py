"""A whole file as read-only memory, opened without reading it. Knows no format but our own executable's."""

import mmap
import os
import stat
from pathlib import Path

from appliance.errors import BadModelFile
from appliance.formats.appended_model import read_trailer


def map_file(path: Path, *, smallest: int, kind: str) -> mmap.mmap:
    """Map a file of at least `smallest` bytes, or the model inside our executable.

    Raises BadModelFile; `kind` names what it should be.
    """
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
            trailer = read_trailer(path)
            length, offset = (trailer.model_bytes, trailer.model_offset) if trailer else (0, 0)
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=offset)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadModelFile(f"the model file '{path}' cannot be opened: {reason}") from error
