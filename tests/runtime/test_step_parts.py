"""A step that does not fit into memory is run in parts and loses nobody; a lost device is said once."""

import pytest
import torch

from appliance.engine.batch import FailureKind
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import TokenEvent
from appliance.errors import NotReady
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.backend import EagerBackend
from appliance.runtime.runner import ModelRunner
from engine.builders import read_all, token_ids
from oracles.tiny_model import load_eager, tiny_model


class Tight:
    """A backend on a device that holds steps of so many tokens only, or fails each."""

    def __init__(self, backend: EagerBackend, *, most_tokens: int, error: Exception | None = None) -> None:
        self._backend = backend
        self._most_tokens = most_tokens
        self._error = error
        self.num_refused = 0
        self.kv_layout, self.device = backend.kv_layout, backend.device
        self.attach_kv, self.copy_blocks = backend.attach_kv, backend.copy_blocks

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        if self._error is not None:
            raise self._error
        if len(inputs.token_ids) > self._most_tokens:
            self.num_refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._backend.forward(inputs)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> EagerBackend:
    return load_eager(tiny_model(seed=2).write(tmp_path_factory.mktemp("parts") / "tiny.gguf"))


def engine_of(backend: Tight) -> Engine:
    pool = BlockPool(32, backend.kv_layout.block_size)
    return Engine(ModelRunner(backend), Scheduler(pool, max_sequences=4, step_tokens=64, context_length=64))


def answers(backend: Tight) -> list[list[int]]:
    engine = engine_of(backend)
    prompts = ([3, 1, 4, 1, 5, 9, 2, 6, 5], list(range(2, 23)), [8])
    params = SamplingParams(temperature=0.0, max_tokens=6)
    streams = [engine.submit(prompt, params) for prompt in prompts]
    while engine.step():
        pass
    return [list(token_ids(read_all(stream)[0])) for stream in streams]


@pytest.mark.parametrize("most_tokens", [20, 5, 1])
def test_steps_that_do_not_fit_give_the_same_answers(eager: EagerBackend, most_tokens: int) -> None:
    expected = answers(Tight(eager, most_tokens=1000))
    tight = Tight(eager, most_tokens=most_tokens)
    assert answers(tight) == expected
    assert tight.num_refused > 0
    assert all(len(answer) == 6 for answer in expected)


@pytest.mark.parametrize("most_tokens", [20, 1])
def test_prompts_that_are_read_in_parts_are_read_whole(eager: EagerBackend, most_tokens: int) -> None:
    def readings(backend: Tight) -> list[TokenEvent]:
        engine = engine_of(backend)
        hidden = SamplingParams(max_tokens=1, wants_hidden_state=True, wants_mean_state=True)
        streams = [
            engine.submit(list(range(2, 32)), params)
            for params in (SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=1), hidden)
        ]
        while engine.step():
            pass
        return [read_all(stream)[0][0] for stream in streams]

    tight = Tight(eager, most_tokens=most_tokens)
    (scored, state), (expected, mean) = readings(tight), readings(Tight(eager, most_tokens=64))
    assert tight.num_refused
    assert [entry.logprob for entry in scored.prompt_logprobs] == pytest.approx(
        [entry.logprob for entry in expected.prompt_logprobs], abs=1e-4
    )
    assert len(scored.prompt_logprobs) == 29
    assert state.hidden_state == pytest.approx(mean.hidden_state, abs=1e-4)


def test_a_sequence_of_which_no_token_fits_says_so(eager: EagerBackend) -> None:
    engine = engine_of(Tight(eager, most_tokens=0))
    stream = engine.submit([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4))
    while engine.step():
        pass
    failure = read_all(stream)[1].failure
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "close other programs that use it, or lower --kv-memory" in failure.message


LOST = (torch.AcceleratorError("CUDA error: gone\nmore"), RuntimeError("Triton Error [CUDA]: gone"))


@pytest.mark.parametrize("error", LOST, ids=["torch", "triton"])
def test_a_lost_device_ends_what_runs_and_new_requests_hear_why(
    eager: EagerBackend, error: Exception
) -> None:
    engine = engine_of(Tight(eager, most_tokens=9, error=error))
    stream = engine.submit([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4))
    assert engine.breakage is None
    engine.step()
    failure = read_all(stream)[1].failure
    assert failure is not None
    first_line = str(error).splitlines()[0]
    assert failure.message.startswith(f"the GPU stopped ({first_line}); restart the appliance")
    assert engine.breakage == failure.message
    with pytest.raises(NotReady, match="the GPU stopped"):
        engine.submit([1], SamplingParams())


def test_another_error_of_a_step_is_not_taken_for_a_lost_device(eager: EagerBackend) -> None:
    engine = engine_of(Tight(eager, most_tokens=9, error=RuntimeError("something else")))
    stream = engine.submit([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4))
    engine.step()
    failure = read_all(stream)[1].failure
    assert failure is not None
    assert failure.message == "RuntimeError: something else"
    assert engine.breakage is None
