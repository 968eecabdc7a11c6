import shutil
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadModelFile
from appliance.formats.gguf import read_gguf
from formats.gguf_builder import Value, write_gguf

NAMES = ("a", "b", "c", "d")


def write_parts(folder: Path, *, num_parts: int = 2, **changes: Value) -> list[Path]:
    """Write a model of four tensors in parts; the first holds the metadata."""
    paths = []
    for part in range(num_parts):
        metadata: dict[str, Value] = {"split.no": part, "split.count": num_parts, "split.tensors.count": 4}
        metadata |= {"general.architecture": "llama"} if part == 0 else {}
        tensors = {name: np.full((2, 4), ord(name), np.float32) for name in NAMES[part::num_parts]}
        path = folder / f"m-{part + 1:05}-of-{num_parts:05}.gguf"
        paths.append(write_gguf(path, metadata | changes, tensors))
    return paths


@pytest.mark.parametrize(("num_parts", "opened"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_a_model_in_parts_opens_by_any_of_them(tmp_path: Path, num_parts: int, opened: int) -> None:
    paths = write_parts(tmp_path, num_parts=num_parts)
    with read_gguf(paths[opened]) as file:
        assert sorted(file.tensors) == list(NAMES)
        for name in NAMES:
            assert (file.raw(name).view(np.float32) == ord(name)).all()
        assert file.metadata_str("general.architecture") == "llama"
        assert file.size_bytes == sum(path.stat().st_size for path in paths)
    with pytest.raises(ValueError, match="is closed"):
        file.raw("a")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, num_parts=3)
    paths[1].unlink()
    with pytest.raises(BadModelFile, match=r"m-00002-of-00003\.gguf' cannot be opened"):
        read_gguf(paths[0])


def test_a_renamed_part_is_told_how_parts_are_named(tmp_path: Path) -> None:
    path = write_parts(tmp_path)[0]
    with pytest.raises(BadModelFile, match=r"2 files and must be named '\.\.\.-00001-of-00002\.gguf'"):
        read_gguf(path.rename(tmp_path / "model.gguf"))


def test_a_part_in_anothers_place_is_refused(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path)
    shutil.copy(first, second)
    with pytest.raises(BadModelFile, match="it says it is part 1 of 2 and is named part 2 of 2"):
        read_gguf(first)


def test_a_tensor_in_two_parts_is_refused_by_name(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path)
    write_gguf(second, {"split.no": 1, "split.count": 2}, {"a": np.ones(4, np.float32)})
    with pytest.raises(BadModelFile, match="the tensor 'a' is in 'm-00001"):
        read_gguf(first)


def test_a_count_of_tensors_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="has 5 tensors and its 2 files hold 4"):
        read_gguf(write_parts(tmp_path, **{"split.tensors.count": 5})[0])
    with pytest.raises(BadModelFile, match=r"'split\.count' is no integer"):
        read_gguf(write_parts(tmp_path, **{"split.count": "2"})[0])
