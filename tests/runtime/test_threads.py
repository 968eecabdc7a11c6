"""Threads: the cores that are ours, cut by a control group's quota of either version."""

import os
from pathlib import Path

import pytest

from appliance.runtime.threads import usable_threads

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_2(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text)
    return folder


def version_1(folder: Path, quota: str, period: str = "100000\n") -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu/cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu/cpu.cfs_period_us").write_text(period)
    return folder


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def test_without_a_control_group_every_core_is_ours(tmp_path: Path) -> None:
    assert usable_threads(tmp_path) == CORES
    assert 1 <= usable_threads() <= CORES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("100000 50000\n", 2),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("garbage\n", 8),
        ("", 8),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_a_quota_of_version_2_bounds_the_threads(tmp_path: Path, text: str, expected: int) -> None:
    assert usable_threads(version_2(tmp_path, text)) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1\n", 8), ("300000\n", 3), ("10000\n", 1)])
@pytest.mark.usefixtures("eight_cores")
def test_a_quota_of_version_1_bounds_the_threads(tmp_path: Path, quota: str, expected: int) -> None:
    assert usable_threads(version_1(tmp_path, quota)) == expected


@pytest.mark.usefixtures("eight_cores")
def test_version_2_comes_first(tmp_path: Path) -> None:
    assert usable_threads(version_2(version_1(tmp_path, "300000\n"), "500000 100000\n")) == 5


def test_a_machine_without_affinity_counts_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_threads(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_threads(tmp_path) == 1
