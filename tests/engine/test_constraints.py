"""Grammars in the scheduler: forced tokens, the end of a grammar, failures, preemption."""

import ctypes
from collections.abc import Sequence as SequenceOf

from appliance.engine.constraint import ConstraintError
from appliance.engine.sequence import FinishReason, SamplingParams
from engine.builders import make_bench


class Spell:
    """Forces runs of tokens: after each chosen token come those of `runs` at its place."""

    num_mask_words = 32

    def __init__(
        self, runs: dict[int, tuple[int, ...]], *, length: int, breaks_at: int | None = None
    ) -> None:
        self.taken: list[int] = []
        self._runs = runs
        self._length = length
        self._breaks_at = breaks_at

    @property
    def is_done(self) -> bool:
        return len(self.taken) >= self._length

    def advance(self, token_ids: SequenceOf[int]) -> None:
        self.taken.extend(token_ids)
        if len(self.taken) == self._breaks_at:
            raise ConstraintError("too much work")

    def forced(self) -> tuple[int, ...]:
        return self._runs.get(len(self.taken), ())

    def fill_mask(self, address: int) -> None:
        words = (ctypes.c_uint32 * self.num_mask_words).from_address(address)
        words[:] = [0xFFFFFFFF] * self.num_mask_words


def constrained(bench, spell: Spell, params: SamplingParams | None = None, prompt: int = 10):
    sequence = bench.submit(list(range(prompt)), params or SamplingParams(max_tokens=50))
    sequence.constraint = spell
    return sequence


def output(sequence) -> list[int]:
    return sequence.token_ids[sequence.num_prompt_tokens :]


def test_forced_tokens_are_computed_in_one_step() -> None:
    bench = make_bench()
    spell = Spell({1: (7, 8, 9), 5: (3, 3)}, length=20)
    sequence = constrained(bench, spell)
    bench.step()
    assert output(sequence)[1:] == [7, 8, 9]
    bench.step()
    assert output(sequence)[5:] == [3, 3]
    assert sequence.num_uncomputed_tokens == 3
    bench.run()
    assert output(sequence) == spell.taken
    assert len(spell.taken) == 20
    assert sequence.finish_reason is FinishReason.STOP


def test_forced_tokens_end_at_the_limit() -> None:
    bench = make_bench()
    sequence = constrained(bench, Spell({1: (7,) * 30}, length=90), SamplingParams(max_tokens=12))
    bench.run()
    assert sequence.finish_reason is FinishReason.LENGTH
    assert len(output(sequence)) == 12


def test_more_forced_tokens_than_a_step_holds_take_several() -> None:
    bench = make_bench(step_tokens=5)
    sequence = constrained(bench, Spell({1: tuple(range(30))}, length=40))
    other = bench.submit([1, 2, 3], SamplingParams(max_tokens=20))
    bench.run()
    assert len(output(sequence)) == 40
    assert output(other) == list(bench.solo(other))


def test_no_token_is_forced_where_its_logprob_was_asked_for() -> None:
    bench = make_bench()
    sequence = constrained(bench, Spell({1: (7, 8)}, length=9), SamplingParams(max_tokens=9, num_logprobs=0))
    bench.step()
    assert len(output(sequence)) == 1


def test_a_grammar_that_breaks_fails_its_own_sequence() -> None:
    bench = make_bench()
    broken = constrained(bench, Spell({}, length=20, breaks_at=3))
    other = bench.submit([1, 2, 3], SamplingParams(max_tokens=6))
    bench.run()
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.failure == "too much work"
    assert output(other) == list(bench.solo(other))


def test_preempted_sequences_keep_their_place_in_the_grammar() -> None:
    bench = make_bench(num_blocks=7, block_size=4, context_length=28)
    spells = [Spell({3: (5, 6), 8: (7,)}, length=16) for _ in range(4)]
    sequences = [constrained(bench, spell, prompt=8 + i) for i, spell in enumerate(spells)]
    bench.run()
    assert bench.scheduler.num_preemptions > 0
    for sequence, spell in zip(sequences, spells, strict=True):
        assert output(sequence) == spell.taken
        assert spell.taken[3:5] == [5, 6]
        assert sequence.finish_reason is FinishReason.STOP
