"""The backend's own sampler: what it chooses is what the plain one does, from the best tokens or from all."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.engine.batch import FailureKind, ScheduledSequence, SequenceOutput
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.formats.gguf import read_gguf
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.masks import Mask
from appliance.runtime.native_sampler import ChoosingBackend, TokenChoice, sample_natively
from appliance.runtime.native_step import NativeOutputs
from appliance.runtime.sampler import sample
from appliance.runtime.sampling_needs import needs_logits, num_candidates
from kernels.cpu.structs import TopTokens
from oracles.tiny_model import CPU, tiny_model

NUM_ROWS, NUM_TOKENS = 24, 301


@pytest.fixture(scope="module")
def backend(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> ChoosingBackend:
    assert pytestconfig.cache is not None
    wishes = LoadWishes(
        device=CPU,
        num_threads=2,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=Path(pytestconfig.cache.mkdir("native-cpu")),
        backend="cpu",
        precision="auto",
        activations="auto",
        kv_dtype="auto",
    )
    with read_gguf(tiny_model().write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")) as file:
        loaded = load_backend(file, wishes, lambda *_: None).backend
    assert isinstance(loaded, ChoosingBackend)
    return loaded


def rows_of(seed: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((NUM_ROWS, NUM_TOKENS)) * 3).float()


def scheduled(params: SamplingParams, number: int = 0, output: tuple[int, ...] = ()) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=SequenceId(number),
        new_token_ids=(1,),
        num_computed_tokens=3 + len(output),
        block_table=(BlockId(0),),
        known_token_ids=[1, 5, 5, 9, *output],
        num_prompt_tokens=4,
        sampling=params,
    )


def native_outputs(
    rows: torch.Tensor, sequences: Sequence[ScheduledSequence], extra: int = 0
) -> NativeOutputs:
    """What the native step gives: the best tokens, and the logits where somebody needs them."""
    values, ids = rows.topk(max(map(num_candidates, sequences)) + extra)
    is_needed = any(map(needs_logits, sequences))
    best = TopTokens(ids.to(torch.int32).numpy(), values.numpy())
    return NativeOutputs(best=best, logits=rows.numpy().copy() if is_needed else None, hidden=None)


def tokens(outputs: list[SequenceOutput]) -> list[tuple[int, ...]]:
    assert all(output.failure is None for output in outputs)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 200, "top_p": 0.7},
        {"top_k": 200, "temperature": 0.4, "min_p": 0.03},
        {},
        {"top_p": 0.9},
        {"top_p": 0.9, "temperature": 0.5, "min_p": 0.02},
        {"temperature": 0.0, "presence_penalty": 2.0},
        {"frequency_penalty": 0.7, "repetition_penalty": 1.3},
        {"logit_bias": ((3, 9.0), (300, -100.0))},
        {"top_k": 5, "min_tokens": 9, "stop_token_ids": frozenset({3, 7})},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_both_samplers_choose_the_same(
    backend: ChoosingBackend, changes: dict[str, object], is_masked: bool
) -> None:
    rows = rows_of()
    sequences = [scheduled(SamplingParams(seed=i, **changes), i, (7, 9)) for i in range(NUM_ROWS)]  # type: ignore[arg-type]
    masks: dict[SequenceId, Mask] = {}
    if is_masked:
        sequences = [replace(s, constraint=Unfollowed()) for s in sequences]
        rng = np.random.default_rng(8)
        masks = {s.sequence_id: mask_of(np.flatnonzero(rng.random(NUM_TOKENS) < 0.3)) for s in sequences}
    outputs = native_outputs(rows, sequences, extra=5)
    found = tokens(sample_natively(backend, outputs, sequences, masks))
    assert found == tokens(sample(ForwardOutputs(logits=rows.clone(), hidden=None), sequences, masks))
    assert len(set(found)) > 3


@dataclass
class Unfollowed:
    """A constraint whose mask the test makes."""

    is_done: bool = False
    num_mask_words: int = 10

    def advance(self, token_ids: Sequence[int]) -> None: ...

    def forced(self) -> tuple[int, ...]:
        return ()

    def fill_mask(self, address: int) -> None:
        raise NotImplementedError


def mask_of(allowed: np.ndarray) -> Mask:
    bits = np.zeros(320, np.uint8)
    bits[allowed] = 1
    return Mask(words=np.packbits(bits, bitorder="little").view(np.uint32))


def test_logprobs_are_those_of_the_row_as_it_was(backend: ChoosingBackend) -> None:
    rows = rows_of()[:1]
    params = SamplingParams(temperature=0.0, num_logprobs=3, logit_bias=((7, 50.0),))
    (output,) = sample_natively(backend, native_outputs(rows, [scheduled(params)]), [scheduled(params)])
    assert output.token_ids == (7,)
    assert output.logprobs is not None
    expected = rows[0].double().log_softmax(-1)
    assert output.logprobs[0].logprob == pytest.approx(float(expected[7]), abs=1e-5)
    assert [token_id for token_id, _ in output.logprobs[0].top] == expected.topk(3).indices.tolist()


def test_logprobs_of_tokens_that_are_asked_for_come_in_that_order(backend: ChoosingBackend) -> None:
    rows = rows_of()[:1]
    params = SamplingParams(temperature=0.0, num_logprobs=0, scored_token_ids=(300, 0, 7))
    (output,) = sample_natively(backend, native_outputs(rows, [scheduled(params)]), [scheduled(params)])
    assert output.logprobs is not None
    expected = rows[0].double().log_softmax(-1)
    assert [token_id for token_id, _ in output.logprobs[0].top] == [300, 0, 7]
    found = [logprob for _, logprob in output.logprobs[0].top]
    assert found == pytest.approx([float(expected[i]) for i in (300, 0, 7)], abs=1e-5)


@dataclass
class Recorder:
    """A backend that records what it is asked."""

    calls: list[int] = field(default_factory=list)

    def choose(self, choices: Sequence[TokenChoice]) -> list[int]:
        self.calls.append(len(choices))
        return [0] * len(choices)


def test_greedy_rows_ask_nobody_and_the_others_once(backend: ChoosingBackend) -> None:
    recorder = Recorder()
    plain = [scheduled(SamplingParams(temperature=0.0), i) for i in range(3)]
    sample_natively(recorder, native_outputs(rows_of()[:3], plain), plain)
    assert recorder.calls == []
    mixed = [*plain, *(scheduled(SamplingParams(top_k=k, seed=1), 3 + k) for k in (2, 0))]
    sample_natively(recorder, native_outputs(rows_of()[:5], mixed), mixed)
    assert recorder.calls == [2]


def test_a_row_that_is_not_finite_or_may_say_nothing_fails_alone(backend: ChoosingBackend) -> None:
    sequences = [scheduled(SamplingParams(temperature=0.0), i) for i in range(4)]
    sequences[1:] = [replace(s, constraint=Unfollowed()) for s in sequences[1:]]
    rows = rows_of()[:4]
    outputs = native_outputs(rows, sequences)
    outputs.best.ids[0] = -1
    error = Mask(words=np.zeros(10, np.uint32), error="too much")
    beyond = mask_of(np.array([310]))  # a token that the model has no logit for
    masks = {SequenceId(1): error, SequenceId(2): mask_of(np.array([299])), SequenceId(3): beyond}
    found = sample_natively(backend, outputs, sequences, masks)
    kinds = [output.failure.kind if output.failure else output.token_ids for output in found]
    assert kinds == [FailureKind.NOT_FINITE, FailureKind.CONSTRAINT, (299,), FailureKind.CONSTRAINT]


def test_an_end_that_is_the_only_way_on_comes_before_min_tokens(backend: ChoosingBackend) -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=frozenset({2, 999}))
    sequences = [replace(scheduled(params, i), constraint=Unfollowed()) for i in range(2)]
    masks = {SequenceId(0): mask_of(np.array([2])), SequenceId(1): mask_of(np.array([2, 6]))}
    outputs = native_outputs(rows_of()[:2], sequences)
    assert tokens(sample_natively(backend, outputs, sequences, masks)) == [(2,), (6,)]
