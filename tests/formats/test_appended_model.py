"""A model inside our executable: found by the trailer, mapped where it lies."""

from pathlib import Path

import numpy as np
import pytest

from appliance.formats.appended_model import MODEL_ALIGNMENT, TRAILER_BYTES, Trailer, read_trailer
from appliance.formats.gguf import read_gguf
from formats.gguf_builder import gguf_bytes


def trailer(**changes: int | str) -> Trailer:
    values: dict[str, int | str] = {
        "payload_offset": 100,
        "payload_bytes": 50,
        "unpacked_bytes": 900,
        "model_offset": MODEL_ALIGNMENT,
        "model_bytes": 10,
        "payload_sha256": "ab" * 32,
        "model_id": "smollm2-135m-instruct",
        "version": "0.1.0",
    }
    return Trailer(**(values | changes))  # type: ignore[arg-type]


def test_a_trailer_reads_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "appliance"
    file.write_bytes(bytes(MODEL_ALIGNMENT + 10) + trailer().pack())
    assert read_trailer(file) == trailer()


@pytest.mark.parametrize("size", [0, 1, TRAILER_BYTES - 1, TRAILER_BYTES, 1000])
def test_any_other_file_has_none(tmp_path: Path, size: int) -> None:
    file = tmp_path / "other"
    file.write_bytes(bytes(size))
    assert read_trailer(file) is None


def test_a_trailer_that_points_past_the_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "cut"
    file.write_bytes(bytes(200) + trailer().pack())
    assert read_trailer(file) is None


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 63 bytes"):
        trailer(model_id="x" * 64).pack()


def test_the_model_inside_opens_by_the_executables_name(tmp_path: Path) -> None:
    model = gguf_bytes([("general.architecture", "llama")], [("a.weight", np.ones((3, 5), dtype=np.float32))])
    file = tmp_path / "appliance"
    start = b"\x7fELF" + bytes(MODEL_ALIGNMENT - 4)
    file.write_bytes(start + model + trailer(model_bytes=len(model)).pack())
    with read_gguf(file) as opened:
        assert opened.metadata_str("general.architecture") == "llama"
        assert opened.size_bytes == len(model)
        assert np.array_equal(opened.raw("a.weight").view(np.float32), np.ones((3, 5), dtype=np.float32))
