"""Steps of the GPU backend that start before the last one is read: the same answers, one wait a step."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import FinishReason, SamplingParams
from appliance.formats.gguf import read_gguf
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, ForwardInputs, ForwardOutputs
from appliance.runtime.backend import Backend, EagerBackend, LeadingBackend
from appliance.runtime.batch_sampler import NOT_FINITE_ID
from appliance.runtime.checkpoint import read_config
from appliance.runtime.chosen_tokens import ChosenTokens
from appliance.runtime.cuda import CudaBackend, cuda_kv_layout
from appliance.runtime.graph_capture import Replay
from appliance.runtime.runner import ModelRunner
from appliance.runtime.weights import WeightLoader
from engine.builders import read_all, token_ids
from kernels.ops import Ops
from kernels.tables import reference_ops
from oracles.tiny_model import CPU, tiny_model
from runtime.graph_recorder import Recorder

CONTEXT, NUM_BLOCKS = 64, 40
META = torch.device("meta")
Parts = tuple[ModelConfig, DecoderWeights]
PROMPTS = ([3, 1, 4, 1, 5], list(range(2, 23)), [8], [9, 9, 9])
RULES = (
    SamplingParams(temperature=0.0, max_tokens=20),
    SamplingParams(temperature=5.0, top_p=0.99, seed=3, max_tokens=7),
    SamplingParams(
        temperature=8.0, top_k=50, seed=4, max_tokens=20, stop_token_ids=frozenset(range(0, 273, 9))
    ),
    SamplingParams(temperature=5.0, min_p=0.01, seed=5, max_tokens=12),
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    path = tiny_model(seed=3).write(tmp_path_factory.mktemp("leading") / "tiny.gguf")
    with read_gguf(path) as file:
        architecture, config = read_config(file)
        return config, WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)


class Counting(CudaBackend):
    """Counts the steps that were started behind one that nobody had read; refuses them if it is told to."""

    num_followed = 0
    refuses = False

    def follow(self, inputs: ForwardInputs, token_ids: torch.Tensor) -> ForwardOutputs | None:
        self.num_followed += 1
        if self.refuses:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().follow(inputs, token_ids)


def backend_of(parts: Parts, recorder: Recorder) -> Counting:
    config, weights = parts
    layout = cuda_kv_layout(config, torch.float32)
    backend = Counting(
        config,
        weights,
        recorder.ops(),
        layout,
        max_sequences=8,
        context_length=CONTEXT,
        new_capture=lambda: recorder,
    )
    backend.attach_kv(NUM_BLOCKS)
    return backend


def engine_of(backend: Backend, num_blocks: int = NUM_BLOCKS) -> Engine:
    scheduler = Scheduler(BlockPool(num_blocks, 16), max_sequences=8, step_tokens=64, context_length=CONTEXT)
    return Engine(ModelRunner(backend), scheduler)


def answers(
    engine: Engine, rules: tuple[SamplingParams, ...] = RULES
) -> list[tuple[tuple[int, ...], FinishReason]]:
    streams = [engine.submit(prompt, params) for prompt, params in zip(PROMPTS, rules, strict=True)]
    while engine.step():
        engine._scheduler.check_invariants()
    found = []
    for stream in streams:
        events, finish = read_all(stream)
        assert finish.failure is None
        found.append((token_ids(events), finish.reason))
    assert engine._scheduler.pool.num_used == 0
    return found


@pytest.fixture(scope="module")
def expected(parts: Parts) -> list[tuple[tuple[int, ...], FinishReason]]:
    eager = EagerBackend(*parts, reference_ops(), cuda_kv_layout(parts[0], torch.float32))
    eager.attach_kv(NUM_BLOCKS)
    return answers(engine_of(eager))


def test_the_answers_are_those_of_steps_in_turn(parts: Parts, expected: list) -> None:
    backend = backend_of(parts, Recorder())
    assert isinstance(backend, LeadingBackend)
    assert answers(engine_of(backend)) == expected
    assert {reason for _, reason in expected} == {FinishReason.LENGTH, FinishReason.STOP}
    assert all(len(set(tokens)) > 3 for tokens, _ in expected[1:])
    assert backend.num_followed >= 19


def test_a_pool_that_is_too_small_for_all_changes_no_answer(parts: Parts, expected: list) -> None:
    backend = backend_of(parts, Recorder())
    assert answers(engine_of(backend, num_blocks=5)) == expected
    assert backend.num_followed > 5


def test_streams_that_come_and_go_get_the_answers_of_a_quiet_engine(parts: Parts, expected: list) -> None:
    backend = backend_of(parts, Recorder())
    engine = engine_of(backend, num_blocks=9)
    came = []
    for number in range(24):
        place = number % len(PROMPTS)
        came.append((place, engine.submit(PROMPTS[place], RULES[place])))
        gone = engine.submit([number + 1, 2, 3], RULES[0])
        for _ in range(number % 5):
            engine.step()
        gone.cancel()
    while engine.step():
        engine._scheduler.check_invariants()
    for place, stream in came:
        events, finish = read_all(stream)
        assert (token_ids(events), finish.reason) == expected[place]
    assert backend.num_followed > 10
    assert engine._scheduler.pool.num_used == 0


def test_a_step_for_which_there_is_no_memory_yet_waits_its_turn(parts: Parts, expected: list) -> None:
    backend = backend_of(parts, Recorder())
    backend.refuses = True
    assert answers(engine_of(backend)) == expected
    assert backend.num_followed >= 19


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=5, num_logprobs=1),
        SamplingParams(temperature=0.0, max_tokens=5, presence_penalty=0.5),
        SamplingParams(max_tokens=1, wants_hidden_state=True),
        SamplingParams(temperature=0.0, max_tokens=5, min_tokens=5, stop_token_ids=frozenset({1})),
    ],
    ids=["logprobs", "penalties", "states", "least length"],
)
def test_what_takes_the_host_keeps_steps_in_turn(parts: Parts, params: SamplingParams) -> None:
    backend = backend_of(parts, Recorder())
    answers(engine_of(backend), (params, *RULES[:1] * 3) if params.max_tokens == 1 else (params,) * 4)
    assert backend.num_followed == (0 if params.max_tokens != 1 else 18)


def test_no_recorded_steps_no_steps_ahead(parts: Parts, expected: list) -> None:
    config, weights = parts
    backend = Counting(
        config,
        weights,
        reference_ops(),
        cuda_kv_layout(config, torch.float32),
        max_sequences=8,
        context_length=CONTEXT,
        new_capture=None,
    )
    backend.attach_kv(NUM_BLOCKS)
    assert answers(engine_of(backend)) == expected
    assert backend.num_followed == 0


def test_tokens_go_to_the_next_step_by_row_and_failed_ones_as_the_first() -> None:
    chosen = ChosenTokens(torch.tensor([5, NOT_FINITE_ID, 7]))
    assert chosen.on_device([0, 1, 2]).tolist() == [5, 0, 7]
    assert chosen.on_device([2, 0]).tolist() == [7, 5]
    assert chosen.read() == [5, NOT_FINITE_ID, 7]


def on_meta(value: Any) -> Any:
    """The same weights on a device that holds nothing, so that whoever reads them fails."""
    if isinstance(value, torch.Tensor):
        return value.to(META)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: on_meta(getattr(value, f.name)) for f in fields(value) if f.init})
    return tuple(map(on_meta, value)) if isinstance(value, tuple) else value


def unreadable_ops() -> Ops:
    """Operations that compute shapes alone; the references of these read lengths and slots."""
    return replace(
        reference_ops(),
        attention=lambda query, *_: torch.empty_like(query),
        write_kv=lambda *_: None,
        rope_write_kv=lambda query, *_: torch.empty_like(query),
    )


class Rerun:
    """A capture that runs a step's Python again: nothing is computed anyway."""

    def capture(self, step: Any) -> Replay:
        step()
        return Replay(step)


def unreadable_engine(parts: Parts) -> Engine:
    config, weights = parts
    backend = CudaBackend(
        config,
        on_meta(weights),
        unreadable_ops(),
        cuda_kv_layout(config, torch.float32),
        max_sequences=8,
        context_length=CONTEXT,
        new_capture=Rerun,
    )
    backend.attach_kv(NUM_BLOCKS)
    assert backend.device == META
    return engine_of(backend)


def test_a_step_waits_for_its_device_once(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, steps in turn and steps ahead, greedy and drawn: only the chosen tokens are read."""
    reads: list[int] = []

    def read(chosen: ChosenTokens) -> list[int]:
        reads.append(len(chosen._ids))
        return [200] * len(chosen._ids)

    monkeypatch.setattr(ChosenTokens, "read", read)
    engine = unreadable_engine(parts)
    found = answers(engine)
    assert [len(tokens) for tokens, _ in found] == [20, 7, 20, 12]
    assert len(reads) == engine.snapshot().num_steps == 20


def test_a_second_read_would_be_noticed(parts: Parts) -> None:
    engine = unreadable_engine(parts)
    stream = engine.submit([1, 2], RULES[0])
    engine.step()
    failure = read_all(stream)[1].failure
    assert failure is not None
    assert "meta" in failure.message
