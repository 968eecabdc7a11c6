"""Fixtures of the server tests."""

from collections.abc import Iterator

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from server.rig import Rig, make_rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with make_rig() as made:
        yield made
        made.wait_idle()


@pytest.fixture
def client(rig: Rig) -> Iterator[TestClient[ASGIApp]]:
    with rig.client() as made:
        yield made
