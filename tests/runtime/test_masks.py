"""Constraints in the data plane: what is blocked is never chosen."""

import ctypes
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from appliance.engine.batch import FailureKind, ScheduledSequence
from appliance.engine.constraint import ConstraintError
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.masks import MaskFiller
from appliance.runtime.sampler import sample
from appliance.runtime.sampling_needs import needs_logits

LOGITS = [5.0, 4.0, 3.0, 2.0, 1.0, 0.5, -1.0]


@dataclass
class AllowOnly:
    """A constraint that allows some tokens, or fails."""

    token_ids: Sequence[int]
    error: str = ""
    is_done: bool = False
    num_mask_words: int = 1

    def advance(self, token_ids: Sequence[int]) -> None:
        pass

    def forced(self) -> tuple[int, ...]:
        return ()

    def fill_mask(self, address: int) -> None:
        if self.error:
            raise ConstraintError(self.error)
        words = ctypes.c_uint32.from_address(address)
        words.value = sum(1 << token_id for token_id in self.token_ids)


def scheduled(constraint: AllowOnly | None, params: SamplingParams, number: int = 1) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=SequenceId(number),
        new_token_ids=(1,),
        num_computed_tokens=0,
        block_table=(BlockId(0),),
        known_token_ids=[1],
        num_prompt_tokens=1,
        sampling=params,
        constraint=constraint,
    )


def chosen(*sequences: ScheduledSequence) -> list[tuple[int, ...] | FailureKind]:
    pending = MaskFiller().start(sequences)
    rows = torch.tensor([LOGITS] * len(sequences))
    outputs = sample(ForwardOutputs(logits=rows, hidden=None), sequences, pending and pending.result())
    return [output.failure.kind if output.failure else output.token_ids for output in outputs]


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=0.0), SamplingParams(top_k=3, seed=1), SamplingParams(top_p=0.5, seed=2)],
)
def test_only_allowed_tokens_are_chosen(params: SamplingParams) -> None:
    (token_ids,) = chosen(scheduled(AllowOnly([4, 6]), params))
    assert token_ids in ((4,), (6,))


def test_the_likeliest_allowed_token_is_the_greedy_choice() -> None:
    assert chosen(scheduled(AllowOnly([6, 4, 5]), SamplingParams(temperature=0.0))) == [(4,)]


def test_bias_cannot_make_a_blocked_token_possible() -> None:
    params = SamplingParams(temperature=0.0, logit_bias=((0, 100.0), (6, 2.5)))
    assert chosen(scheduled(AllowOnly([5, 6]), params)) == [(6,)]


def test_bias_moves_a_free_choice() -> None:
    params = SamplingParams(temperature=0.0, logit_bias=((0, -100.0), (6, 10.0)))
    assert chosen(scheduled(None, params)) == [(6,)]


def test_a_neighbour_without_a_constraint_is_free() -> None:
    greedy = SamplingParams(temperature=0.0)
    assert chosen(scheduled(AllowOnly([3]), greedy, 1), scheduled(None, greedy, 2)) == [(3,), (0,)]


def test_a_constraint_that_fails_or_allows_nothing_fails_its_own_sequence() -> None:
    greedy = SamplingParams(temperature=0.0)
    sequences = [
        scheduled(AllowOnly([], error="too much"), greedy, 1),
        scheduled(AllowOnly([]), greedy, 2),
        scheduled(AllowOnly([2]), greedy, 3),
    ]
    assert chosen(*sequences) == [FailureKind.CONSTRAINT, FailureKind.CONSTRAINT, (2,)]


def test_an_end_that_is_the_only_way_on_comes_before_min_tokens() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=frozenset({2}))
    assert chosen(scheduled(AllowOnly([2]), params)) == [(2,)]
    assert chosen(scheduled(AllowOnly([2, 6]), params)) == [(6,)]


def test_constrained_and_biased_rows_ask_a_backend_for_all_logits() -> None:
    greedy = SamplingParams(temperature=0.0)
    assert needs_logits(scheduled(AllowOnly([1]), greedy))
    assert needs_logits(scheduled(None, SamplingParams(temperature=0.0, logit_bias=((1, 1.0),))))
    assert not needs_logits(scheduled(None, greedy))


def test_logprobs_are_those_before_the_mask() -> None:
    sequence = scheduled(AllowOnly([6]), SamplingParams(temperature=0.0, num_logprobs=1))
    pending = MaskFiller().start([sequence])
    assert pending is not None
    outputs = ForwardOutputs(logits=torch.tensor([LOGITS]), hidden=None)
    (output,) = sample(outputs, [sequence], pending.result())
    assert output.logprobs is not None
    assert output.logprobs[0].top[0][0] == 0
    assert math.isfinite(output.logprobs[0].logprob)


@dataclass
class Recorded(AllowOnly):
    """Notes which thread fills it, and how long that takes by a clock of its own."""

    token_ids: Sequence[int] = (2,)
    seconds: float = 0.0
    clock: list[float] = field(default_factory=lambda: [0.0])
    threads: list[str] = field(default_factory=list)

    def fill_mask(self, address: int) -> None:
        self.threads.append("masks" if threading.current_thread().name.startswith("masks") else "own")
        self.clock[0] += self.seconds
        super().fill_mask(address)


def test_a_mask_is_filled_beside_the_step_unless_the_last_one_was_quick() -> None:
    clock = [0.0]
    steady, hard = Recorded(clock=clock, seconds=20e-6), Recorded(clock=clock, seconds=20e-6)
    greedy = SamplingParams(temperature=0.0)
    sequences = [scheduled(steady, greedy, 1), scheduled(hard, greedy, 2), scheduled(None, greedy, 3)]
    filler = MaskFiller(clock=lambda: clock[0])
    for hard_s in (20e-6, 20e-6, 2e-3, 2e-3, 20e-6, 20e-6):
        hard.seconds = hard_s
        pending = filler.start(sequences)
        assert pending is not None
        masks = pending.result()
        assert sorted(masks) == [1, 2]
        assert [masks[SequenceId(number)].words.tolist() for number in (1, 2)] == [[4], [4]]
    assert steady.threads == ["masks", "own", "own", "own", "own", "own"]
    assert hard.threads == ["masks", "own", "own", "masks", "masks", "own"]


def test_nobody_waits_for_a_mask_where_there_is_no_constraint() -> None:
    assert MaskFiller().start([scheduled(None, SamplingParams())]) is None
