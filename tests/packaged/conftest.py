"""The built file. Made when dist/ has none, which takes minutes: hence every test here is `slow`."""

import subprocess
import sys
from pathlib import Path

import pytest

from packaged.running import run

CHECKOUT = Path(__file__).resolve().parents[2]
_NAMES = "inference-appliance-*[!l]"  # not a .partial one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=10, help="how often the built file is killed")
    parser.addoption("--bare-tree", type=Path, help="a system without Python, made by debootstrap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.skipif(sys.platform == "win32", reason="written for POSIX shells"))


@pytest.fixture(scope="session")
def executable() -> Path:
    found = sorted((CHECKOUT / "dist").glob(_NAMES))
    if not found:
        subprocess.run([sys.executable, "packaging/package.py"], cwd=CHECKOUT, check=True)
        found = sorted((CHECKOUT / "dist").glob(_NAMES))
    return found[0]


@pytest.fixture(scope="session")
def unpacked(executable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the executable has been unpacked already."""
    folder = tmp_path_factory.mktemp("unpacked")
    run(executable, "version", home=folder, unpack_to=folder / "app")
    return folder / "app"
