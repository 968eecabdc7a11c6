"""All checks in the order in which a person would look. Knows what each needs; judges nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from appliance import paths
from appliance.config import Settings
from appliance.download.store import ModelStore
from appliance.errors import BadSetting
from appliance.observe.doctor import (
    fit,
    gpu,
    memory,
    native_engine,
    port,
    processor,
    settings,
    storage,
    weights,
)
from appliance.observe.doctor.finding import Finding, failed
from appliance.observe.doctor.gpu_facts import GpuFacts, read_gpu_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is examined: the settings that `serve` would take, or why it would refuse them."""

    settings: Settings
    settings_file: Path
    problem: BadSetting | None
    environment: Mapping[str, str]
    find: Callable[[str], weights.Found]
    store: ModelStore
    bind: port.Bind
    has_key: bool
    foresee: fit.Foresee
    read_gpus: Callable[[], GpuFacts] = read_gpu_facts


def examine(case: Case) -> Iterator[Finding]:
    """Run every check, one after the other, each result as soon as it is there."""
    for name, check in _checks(case):
        try:
            found = check()
        except Exception as error:  # a check that breaks must not hide what the others find
            found = failed(name, f"the check broke: {type(error).__name__}: {error}", "report this, please")
        yield from [found] if isinstance(found, Finding) else found


def _checks(case: Case) -> Iterator[tuple[str, Callable[[], Finding | list[Finding]]]]:
    wish = case.settings
    model_bytes, missing_bytes = weights.num_model_bytes(wish.model, case.find, case.store)
    can_build, native_dir = not paths.is_frozen(), paths.native_dir()
    names = [field.name for field in fields(Settings)]
    folders = {
        "models": case.store.models_dir,
        "cache": paths.cache_dir(),
        "config": paths.config_dir(),
        "state": paths.state_dir(),
    }
    yield "hardware", processor.check_hardware
    yield "instructions", processor.check_instruction_sets
    yield "cpu share", processor.check_cpu_share
    yield "memory", lambda: memory.check_memory(model_bytes)
    yield "swap", memory.check_swap
    yield "gpu", lambda: gpu.check_gpu(case.read_gpus(), model_bytes, asked_by=_asks_for_gpu(wish))
    yield "compiler", lambda: native_engine.check_compiler(is_frozen=not can_build)
    yield "native engine", lambda: native_engine.check_native_library(native_dir, can_build=can_build)
    yield "disk", lambda: storage.check_disk(case.store.models_dir, missing_bytes)
    yield "folders", lambda: storage.check_folders(folders)
    yield "open files", processor.check_open_files
    yield "settings", lambda: settings.check_settings(case.settings_file, case.problem)
    yield "environment", lambda: settings.check_environment(case.environment, names)
    yield "port", lambda: port.check_port(wish.host, wish.port, case.bind)
    yield "exposure", lambda: port.check_exposure(wish.host, has_key=case.has_key)
    yield "model", lambda: weights.check_model(wish.model, case.find, case.store)
    yield "fit", lambda: fit.check_fit(wish.model, case.find, case.foresee)


def _asks_for_gpu(wish: Settings) -> str:
    """The setting that does; empty for none."""
    if wish.device.startswith("cuda"):
        return f"--device {wish.device}"
    return "--backend cuda" if wish.backend == "cuda" else ""
