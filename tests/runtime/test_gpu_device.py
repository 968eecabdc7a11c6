"""What keeps a GPU from being used is one sentence with a remedy."""

from dataclasses import replace

import pytest
import torch

from appliance.runtime.gpu_device import GpuFacts, read_gpu, why_no_gpu

GOOD = GpuFacts(
    is_cuda_build=True,
    has_triton=True,
    name="Test Card",
    architecture=90,
    free_bytes=2**34,
    total_bytes=2**34,
)
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver.\nmore"
)


def test_a_card_that_is_new_enough_has_no_trouble() -> None:
    assert why_no_gpu(GOOD) is None
    assert why_no_gpu(replace(GOOD, architecture=80)) is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(GOOD, is_cuda_build=False), "this PyTorch is built without CUDA; install PyTorch's CUDA"),
        (
            replace(GOOD, is_cuda_build=False, has_driver=False),
            "no NVIDIA driver is installed, and PyTorch is built without CUDA; a GPU needs both",
        ),
        (
            replace(GOOD, driver_error="Found no NVIDIA driver on your system."),
            "no NVIDIA driver is installed",
        ),
        (replace(GOOD, driver_error=OLD_DRIVER), "too old for this PyTorch; update it"),
        (
            replace(GOOD, driver_error="No CUDA GPUs are available"),
            "sees no GPU; check that it is plugged in",
        ),
        (
            replace(GOOD, driver_error="CUDA error: out of memory"),
            "other programs hold all of the GPU's memory",
        ),
        (replace(GOOD, driver_error="unknown error 999\n"), "does not answer (unknown error 999); restart"),
        (replace(GOOD, architecture=75), "Test Card has compute capability 7.5 and .* needs 8.0 (Ampere)"),
        (replace(GOOD, has_triton=False), "the package triton is not installed"),
    ],
    ids=[
        "build",
        "build and driver",
        "no driver",
        "old driver",
        "no card",
        "full",
        "odd",
        "old card",
        "no triton",
    ],
)
def test_each_trouble_is_one_sentence_of_its_own(facts: GpuFacts, words: str) -> None:
    trouble = why_no_gpu(facts)
    assert trouble is not None
    assert all(part in trouble for part in words.split(" .* "))
    assert "\n" not in trouble


def test_this_machine_is_read_without_an_error() -> None:
    facts = read_gpu(torch.device("cpu"))
    assert facts.is_cuda_build == torch.backends.cuda.is_built()
    if not torch.cuda.is_available():
        assert why_no_gpu(facts) is not None
