"""GPU readiness: each way in which a card cannot serve is one sentence with its remedy."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from appliance.observe.doctor.finding import Status
from appliance.observe.doctor.gpu import check_gpu
from appliance.observe.doctor.gpu_facts import Card, GpuFacts, read_gpu_facts

GIB = 2**30
CARD = Card(name="GPU X", capability=(8, 9), total_bytes=24 * GIB, free_bytes=23 * GIB)
GOOD = GpuFacts(
    num_on_bus=1,
    has_module=True,
    driver_version="580.65",
    driver_cuda=(13, 0),
    torch_cuda=(13, 0),
    cards=(CARD,),
)
HELD = replace(CARD, free_bytes=2 * GIB, holders=(("blender (process 7)", 20 * GIB), ("process 8", GIB)))
TROUBLES = [
    (replace(GOOD, has_module=False, cards=()), "1 NVIDIA card is in this machine, but", "[cuda]"),
    (
        replace(GOOD, num_on_bus=2, cards=(), driver_problem="Driver Not Loaded"),
        "2 NVIDIA cards are in this machine without a working driver: Driver Not Loaded",
        "install NVIDIA's driver",
    ),
    (
        replace(GOOD, cards=(), driver_problem="GPU is lost"),
        "1 NVIDIA card is in this machine, and the driver has lost one: GPU is lost",
        "restart the machine",
    ),
    (replace(GOOD, torch_cuda=None), "built without CUDA", "CUDA build"),
    (
        replace(GOOD, driver_version="525.1", driver_cuda=(12, 4)),
        "driver 525.1 is too old: it serves CUDA 12.4 and this PyTorch needs 13.0",
        "update NVIDIA's driver",
    ),
    (replace(GOOD, cards=(replace(CARD, capability=(7, 5)),)), "too old: compute capability 7.5", "Ampere"),
    (replace(GOOD, cards=(replace(CARD, total_bytes=6 * GIB),)), "too small: 6.0 GiB", "smaller model"),
    (
        replace(GOOD, cards=(HELD,)),
        "2.0 GiB of 24.0 GiB free and about 9.0 GiB are needed; held by blender (process 7): 20.0 GiB, proc",
        "end those programs",
    ),
]


@pytest.mark.parametrize(("facts", "summary", "remedy"), TROUBLES)
@pytest.mark.parametrize("is_wanted", [False, True])
def test_each_trouble_is_said_and_fails_only_where_a_gpu_was_asked_for(
    facts: GpuFacts, summary: str, remedy: str, is_wanted: bool
) -> None:
    (finding,) = check_gpu(facts, 8 * GIB, asked_by="--device cuda" if is_wanted else "")
    assert summary in finding.summary
    assert remedy in finding.remedy
    assert finding.status == (Status.FAIL if is_wanted else Status.WARN)


def test_every_card_has_its_line_and_a_good_one_passes() -> None:
    findings = check_gpu(replace(GOOD, cards=(CARD, HELD)), 8 * GIB)
    assert [(f.name, f.status) for f in findings] == [("gpu 0", Status.PASS), ("gpu 1", Status.WARN)]


def test_an_older_driver_of_the_same_major_version_serves() -> None:
    facts = replace(GOOD, driver_cuda=(13, 0), torch_cuda=(13, 2))
    assert check_gpu(facts, GIB, asked_by="--device cuda")[0].status == Status.PASS


def test_a_machine_without_a_gpu_is_fine_unless_one_is_asked_for() -> None:
    none = GpuFacts(num_on_bus=0)
    assert check_gpu(none, GIB)[0].status == Status.PASS


@pytest.mark.parametrize(
    ("asked_by", "remedy"), [("--backend cuda", "--backend auto"), ("--device cuda:1", "--device auto")]
)
def test_a_gpu_that_is_asked_for_and_missing_names_the_setting_that_asks(asked_by: str, remedy: str) -> None:
    (finding,) = check_gpu(GpuFacts(num_on_bus=0), GIB, asked_by=asked_by)
    assert finding.status == Status.FAIL
    assert finding.summary == f"{asked_by} cannot be used: no NVIDIA GPU is found"
    assert finding.remedy == f"without a GPU: {remedy}"


def test_a_card_of_a_number_that_is_not_there_is_told() -> None:
    (finding,) = check_gpu(GOOD, GIB, asked_by="--device cuda:1")
    assert (finding.status, finding.summary) == (
        Status.FAIL,
        "--device cuda:1 is not there; the last card is cuda:0",
    )
    two = replace(GOOD, cards=(CARD, CARD))
    assert all(f.status == Status.PASS for f in check_gpu(two, GIB, asked_by="--device cuda:1"))


class NVMLError(Exception):
    pass


def library(*, has_driver: bool = True) -> ModuleType:
    module = ModuleType("doctor_stand_in_nvml")

    def init() -> None:
        if not has_driver:
            raise NVMLError("Driver Not Loaded")

    module.NVMLError = NVMLError
    module.nvmlInit = init
    module.nvmlSystemGetCudaDriverVersion = lambda: 12080
    module.nvmlSystemGetDriverVersion = lambda: b"570.1"
    module.nvmlDeviceGetCount = lambda: 1
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=1000, free=100)
    module.nvmlDeviceGetName = lambda _: "GPU X"
    module.nvmlDeviceGetCudaComputeCapability = lambda _: (8, 6)
    module.nvmlDeviceGetComputeRunningProcesses = lambda _: [
        SimpleNamespace(pid=2**30, usedGpuMemory=None),
        SimpleNamespace(pid=2**30 + 1, usedGpuMemory=900),
    ]
    return module


def bus(folder: Path, *devices: tuple[str, str]) -> Path:
    for index, (vendor, kind) in enumerate(devices):
        device = folder / f"0000:0{index}"
        device.mkdir()
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    return folder


def test_what_the_driver_tells_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "doctor_stand_in_nvml", library())
    # A card, its sound device, another maker's card.
    pci = bus(tmp_path, ("0x10de", "0x030000"), ("0x10de", "0x040300"), ("0x1002", "0x030000"))
    facts = read_gpu_facts(module_name="doctor_stand_in_nvml", pci=pci)
    assert (facts.num_on_bus, facts.driver_version, facts.driver_cuda) == (1, "570.1", (12, 8))
    assert facts.cards[0].capability == (8, 6)
    assert facts.cards[0].holders[0] == (f"process {2**30 + 1}", 900)


def test_a_driver_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "doctor_stand_in_nvml", library(has_driver=False))
    facts = read_gpu_facts(module_name="doctor_stand_in_nvml", pci=bus(tmp_path, ("0x10de", "0x030200")))
    assert facts.driver_problem == "Driver Not Loaded"
    assert read_gpu_facts(module_name="no_such_module", pci=tmp_path / "absent").num_on_bus is None
