"""Loads what is to be compared, as the appliance would serve it, and measures it. Knows settings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from appliance.catalog import ModelFile
from appliance.config import Settings
from appliance.errors import BadSetting, NotEnoughMemory
from appliance.eval.bias import compare
from appliance.eval.calibration import Calibration, calibrate
from appliance.eval.evaluation import Measured, Report, evaluate
from appliance.eval.logit_reader import WINDOW
from appliance.formats.model_file import open_model_file
from appliance.loader import load_wishes, wanted_map
from appliance.observe.resources import ProcessResources
from appliance.precision_map import EMPTY_MAP, PrecisionMap
from appliance.quality import Quality, save_quality, variant_of
from appliance.runtime.checkpoint import ModelFile as OpenModel
from appliance.runtime.checkpoint import read_config
from appliance.runtime.device import select_device
from appliance.runtime.human_size import human_size
from appliance.runtime.loading import LoadedBackend, load_backend
from appliance.runtime.threads import usable_threads
from appliance.runtime.weights import WeightLoader
from appliance.text.model_text import read_tokenizer


def measure(
    settings: Settings, found: ModelFile, against: str, report: Report, *, long_context: int | None = None
) -> Quality:
    """Load the model twice, with the settings and as `against`, compare and keep the result.

    Both are in memory at once. Raises what loading raises, BadSetting and StorageNotWritable.
    """
    with open_model_file(found.path) as file:
        _, config = read_config(file, settings.context)
        if long_context is not None and not WINDOW <= long_context <= config.context_length:
            raise BadSetting(
                f"--long-context is {long_context}; take {WINDOW} tokens, which are measured anyway, up to "
                f"{config.context_length}, which is the context (see --context)",
                param="long_context",
            )
        encode = partial(read_tokenizer(file).encode, parse_special=False)
        reference = load(file, replace(settings, precision=against, kv_dtype="auto"), report)
        loaded = load(file, settings, report, precision_map=wanted_map(settings, found))
    variant = variant_of(settings.precision, settings.activations, settings.kv_dtype)
    quality = evaluate(
        found.model_id,
        Measured(loaded=loaded, variant=variant, activations=settings.activations),
        Measured(loaded=reference, variant=against),
        encode,
        report,
        long_context=long_context,
    )
    save_quality(found.path, quality)
    return quality


def calibrate_model(
    settings: Settings,
    found: ModelFile,
    prompts: Sequence[str],
    *,
    size_share: float,
    error: float | None,
    is_scaling: bool,
    is_traffic: bool,
    report: Report,
) -> Calibration:
    """Load the model in float32 and find what to keep in 16 bits. Raises what loading raises."""
    torch.set_num_threads(settings.threads or usable_threads())
    with open_model_file(found.path) as file:
        tokenizer = read_tokenizer(file)
        architecture, config = read_config(file, settings.context)
        _require_room(file.path.name, sum(t.num_elements for t in file.tensors.values()))
        report("loading in float32")
        device = torch.device(str(select_device(settings.device)))
        weights = WeightLoader(file, dtype=torch.float32, device=device).load(architecture, config)
    token_ids = [tokenizer.encode(prompt, parse_special=is_traffic) for prompt in prompts]
    return calibrate(
        config,
        weights,
        token_ids,
        size_share=size_share,
        error=error,
        is_scaling=is_scaling,
        report=report,
    )


def _require_room(name: str, num_parameters: int) -> None:
    # Weights in float32, records of inputs and gradients of half their size, and a window's own.
    needed_bytes = 6 * num_parameters + 2**30
    free_bytes = ProcessResources().read_memory().available_bytes
    if needed_bytes > free_bytes:
        raise NotEnoughMemory(
            f"calibrating '{name}' needs {human_size(needed_bytes)}, weights in float32 among them, and "
            f"{human_size(free_bytes)} are free; calibrate it on a larger machine, and bring the map here"
        )


def compare_with_traffic(found: ModelFile, prompts: Sequence[str], traffic: Sequence[str]) -> tuple[str, ...]:
    """Return in what a set is unlike the model's recorded prompts, in words."""
    with open_model_file(found.path) as file:
        encode = partial(read_tokenizer(file).encode, parse_special=False)
    comparison = compare(list(map(encode, prompts)), list(map(partial(encode, parse_special=True), traffic)))
    return comparison.warnings if comparison else ()


def load(
    file: OpenModel, settings: Settings, report: Report, *, precision_map: PrecisionMap = EMPTY_MAP
) -> LoadedBackend:
    """Load onto the backend that would serve it. Raises what loading raises."""
    num_threads = settings.threads or usable_threads()
    torch.set_num_threads(num_threads)
    wishes = load_wishes(settings, select_device(settings.device), num_threads, precision_map=precision_map)
    return load_backend(file, wishes, lambda text, _: report(text))
