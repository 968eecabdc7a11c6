"""Process and machine memory, and control groups of both versions, as files in a folder."""

from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.observe.resources import (
    CgroupMemory,
    ProcessResources,
    cgroup_folders,
    read_cgroup_memory,
)


def write(folder: Path, **files: str) -> None:
    """Write files; a double underscore in a name stands for a dot."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_2_limit_leaves_reclaimable_pages_out(tmp_path: Path) -> None:
    write(tmp_path, memory__max="1000\n", memory__current="700\n", memory__stat="anon 1\ninactive_file 200\n")
    assert read_cgroup_memory(tmp_path) == CgroupMemory(limit_bytes=1000, used_bytes=500)


def test_version_1_limit_leaves_reclaimable_pages_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        memory__limit_in_bytes="1000",
        memory__usage_in_bytes="700",
        memory__stat="cache 9\ntotal_inactive_file 100\n",
    )
    assert read_cgroup_memory(tmp_path) == CgroupMemory(limit_bytes=1000, used_bytes=600)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory__max": "max", "memory__current": "700"},
        {"memory__limit_in_bytes": "9223372036854771712", "memory__usage_in_bytes": "700"},
        {"memory__max": "1000"},
        {"memory__max": "", "memory__current": "x"},
    ],
)
def test_no_limit_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    assert read_cgroup_memory(tmp_path) is None


def test_folders_run_from_the_own_group_up_to_the_root(tmp_path: Path) -> None:
    for path in ("a/b", "memory/c"):
        (tmp_path / path).mkdir(parents=True)
    membership = "0::/a/b/gone\n5:cpu,memory:/c\n4:cpuset:/other\n"
    assert cgroup_folders(tmp_path, membership) == (
        tmp_path / "a" / "b",
        tmp_path / "a",
        tmp_path / "memory" / "c",
        tmp_path,
        tmp_path / "memory",
    )


@settings(deadline=None)
@given(st.text(alphabet="0:/.,amemory\n", max_size=60))
def test_any_membership_text_is_read(membership: str) -> None:
    assert cgroup_folders(Path("/nowhere/at/all"), membership) == ()


def test_folders_never_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert cgroup_folders(root, "0::/../../etc") == (root,)


def test_memory_is_cut_to_the_tightest_limit(tmp_path: Path) -> None:
    write(tmp_path, memory__max="5000", memory__current="1000")
    reading = ProcessResources(cgroup_root=tmp_path).read_memory()
    assert reading.limit_bytes == 5000
    assert reading.available_bytes == 4000
    assert reading.process_resident_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_a_group_past_its_limit_has_nothing_left(tmp_path: Path) -> None:
    write(tmp_path, memory__max="5000", memory__current="6000")
    assert ProcessResources(cgroup_root=tmp_path).read_memory().available_bytes == 0


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    reading = ProcessResources(cgroup_root=tmp_path / "absent").read_memory()
    assert reading.limit_bytes == psutil.virtual_memory().total
    assert 0 < reading.available_bytes <= reading.limit_bytes


def test_cpu_percent_is_of_the_time_since_the_last_call() -> None:
    now = [0.0]
    resources = ProcessResources(clock=lambda: now[0])
    assert resources.read_cpu_percent() is None
    before = psutil.Process().cpu_times().user
    while psutil.Process().cpu_times().user - before < 0.05:
        pass
    now[0] = 0.1
    percent = resources.read_cpu_percent()
    assert percent is not None
    assert percent >= 40
