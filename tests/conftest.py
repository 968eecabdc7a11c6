"""Shared by all tests: stand-ins import by their path under tests/ (`from formats.gguf_builder ...`)."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
