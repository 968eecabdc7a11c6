"""The GPU's table under Triton's interpreter, noting which operations ran for test_interpreted.py."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.ops import Ops
from kernels.tables import gpu_ops


def pytest_configure(config: pytest.Config) -> None:
    # numpy warns of the infinity that an exponential runs into on purpose.
    config.addinivalue_line("filterwarnings", "ignore:overflow encountered:RuntimeWarning")


def noting(operation: Callable[..., object], ran: set[str]) -> Callable[..., object]:
    def run(*args: object) -> object:
        ran.add(operation.__name__)
        return operation(*args)

    return run


@pytest.fixture(scope="session")
def ops() -> Iterator[Ops]:
    table, ran = gpu_ops(), set[str]()
    yield Ops(**{field.name: noting(getattr(table, field.name), ran) for field in fields(Ops)})
    if "OPERATIONS_THAT_RAN" in os.environ:
        Path(os.environ["OPERATIONS_THAT_RAN"]).write_text(json.dumps(sorted(ran)), encoding="utf-8")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture(autouse=True)
def new_memory_is_poisoned() -> Iterator[None]:
    """Fill what torch.empty gives with NaN, so that what a kernel leaves out shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
