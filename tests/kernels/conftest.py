"""The kernel tables under test, and a random generator per test."""

import numpy as np
import pytest

from kernels.ops import Ops
from kernels.tables import reference_ops


@pytest.fixture
def ops() -> Ops:
    return reference_ops()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)
