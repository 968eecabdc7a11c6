"""Shared by all tests: stand-ins import by their path under tests/ (`from formats.gguf_builder ...`)."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
# A busy machine stalls any example; what takes too long is for benchmarks to say.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
# A shell's background job ignores interrupts, and so would every program started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
