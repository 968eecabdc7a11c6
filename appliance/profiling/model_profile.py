"""Loads a model and profiles it: steps at several batch sizes, limits of the machine, a verdict for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from appliance.formats.model_file import open_model_file
from appliance.profiling.staged_backend import staged
from appliance.profiling.step_profile import StepProfile, profile_steps, tokens_each
from appliance.profiling.verdict import Limits, Traffic, Verdict, judge
from appliance.runtime.backend import Backend
from appliance.runtime.cpu import CpuBackend
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from appliance.text.model_text import read_tokenizer
from kernels.cpu.build import BuildError
from kernels.cpu.limits import PRODUCTS_GOP_S, READ_GB_S, measure_limits

BATCHES = (1, 8, 32)
_TOP_OPERATORS = 12
Report = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Everything found. `operators` are (name, calls, seconds) of one step at the first batch size."""

    backend_name: str
    precision: str
    limits: Limits
    limits_problem: str
    steps: tuple[tuple[StepProfile, Traffic, Verdict], ...]
    operators: tuple[tuple[str, int, float], ...]


def profile_model(
    path: Path,
    wishes: LoadWishes,
    report: Report,
    *,
    batches: Sequence[int] = BATCHES,
    context: int = 128,
    num_steps: int = 16,
) -> ModelProfile:
    """Raises BadModelFile, UnsupportedModel, BadSetting or NotEnoughMemory."""
    limits, problem = _limits(wishes, report)
    with open_model_file(path) as file:
        tokenizer = read_tokenizer(file)
        num_parameters = sum(tensor.num_elements for tensor in file.tensors.values())
        loaded = load_backend(file, wishes, report)
    backend = loaded.backend
    tokens = tokens_each(max(batches), context, num_steps)
    # A block more for each: the scheduler admits nobody who could take the last one of another.
    num_blocks = (tokens // backend.kv_layout.block_size + 3) * max(batches)
    backend.attach_kv(num_blocks)
    run = partial(
        profile_steps,
        staged(backend),
        tokenizer,
        _phases_of(backend),
        num_blocks=num_blocks,
        context=context,
        num_steps=num_steps,
    )
    steps = []
    for batch in batches:
        report(f"decode steps, batch {batch}", None)
        step = run(batch=batch)
        traffic = traffic_of(loaded, num_parameters, batch=batch, context=context)
        steps.append((step, traffic, judge(step, traffic, limits)))
    operators = _operators(lambda: run(batch=batches[0])) if not isinstance(backend, CpuBackend) else ()
    return ModelProfile(
        backend_name=loaded.backend_name,
        precision=loaded.precision,
        limits=limits,
        limits_problem=problem,
        steps=tuple(steps),
        operators=operators,
    )


def traffic_of(loaded: LoadedBackend, num_parameters: int, *, batch: int, context: int) -> Traffic:
    """Count the least that a decode step reads and computes: every weight once, every key and value.

    A table of embeddings of its own is looked up, not read. Of a mixture all experts are counted: a bound
    from above at batch 1, and near the truth where a batch reaches most of them.
    """
    config = loaded.config
    share_read = 1.0
    if not config.ties_embeddings:
        share_read -= min(0.9, config.vocab_size * config.hidden_size / num_parameters)
    kv_bytes = batch * context * config.num_layers * loaded.backend.kv_layout.token_bytes
    attention = 4 * batch * context * config.num_layers * config.num_heads * config.head_size
    return Traffic(
        num_bytes=loaded.weights_bytes * share_read + kv_bytes,
        operations=2 * num_parameters * share_read * batch + attention,
    )


def _limits(wishes: LoadWishes, report: Report) -> tuple[Limits, str]:
    if wishes.device.type != "cpu":
        return Limits(), "limits are measured on the CPU only"
    report("measuring the machine's limits", None)
    try:
        found = measure_limits(wishes.library_folder, wishes.num_threads)
    except (BuildError, OSError) as error:
        return Limits(), str(error)
    products = found.get(PRODUCTS_GOP_S)
    return Limits(
        bytes_per_s=found[READ_GB_S] * 1e9,
        operations_per_s=None if products is None else products * 1e9,
    ), ""


def _phases_of(backend: Backend) -> Callable[[], dict[str, float]]:
    return backend.take_phase_seconds if isinstance(backend, CpuBackend) else dict


def _operators(run: Callable[[], object]) -> tuple[tuple[str, int, float], ...]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    return tuple((str(r.key), int(r.count), r.self_cpu_time_total / 1e6) for r in rows[:_TOP_OPERATORS])
