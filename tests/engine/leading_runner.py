"""A scripted runner whose device goes on before its tokens are read; steps are done as they are launched."""

from dataclasses import replace
from typing import Any

from appliance.engine.batch import UNKNOWN_TOKEN, Batch, StepResult
from engine.scripted_runner import ScriptedPending, ScriptedRunner


class LeadingScriptedRunner(ScriptedRunner):
    """Satisfies `LeadingRunner`. `trace` has what happened, in order, by the number of the step.

    refuses_next: the next steps are not started ahead. next_error: raised by the next launches ahead.
    """

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.refuses_next = False
        self.next_error: Exception | None = None
        self.trace: list[tuple[str, int]] = []
        self._pending: list[ScriptedPending] = []  # launched and not yet collected

    @property
    def num_ahead(self) -> int:
        return sum(what == "launch_next" for what, _ in self.trace)

    def launch(self, batch: Batch) -> ScriptedPending:
        assert not self._pending, "a step was started beside one whose tokens decide it"
        return self._started("launch", super().launch(batch))

    def leads(self, pending: ScriptedPending) -> bool:
        return all(s.constraint is None and not _is_asked_more(s.sampling) for s in pending.batch.sequences)

    def launch_next(self, pending: ScriptedPending, batch: Batch) -> ScriptedPending | None:
        assert self._pending == [pending], "the step before is not the only one under way"
        assert batch.sequences
        assert (batch.saves, batch.restores, batch.block_copies) == ((), (), ())
        if self.refuses_next:
            return None
        if self.next_error is not None:
            raise self.next_error
        chosen = {output.sequence_id: output.token_ids for output in pending.result.outputs}
        told = []
        for scheduled in batch.sequences:
            assert scheduled.new_token_ids == (UNKNOWN_TOKEN,)
            assert len(scheduled.known_token_ids) == scheduled.num_computed_tokens, (
                "its token is known already"
            )
            token_ids = chosen[scheduled.sequence_id] or (0,)  # where the step before failed, any does
            known = [*scheduled.known_token_ids, *token_ids]
            told.append(replace(scheduled, new_token_ids=token_ids, known_token_ids=known))
        done = super().launch(Batch(sequences=tuple(told)))
        return self._started("launch_next", ScriptedPending(batch, done.result))

    def collect(self, pending: ScriptedPending) -> StepResult:
        assert self._pending[0] is pending, "steps are collected in the order of their launches"
        del self._pending[0]
        self.trace.append(("collect", self.num_steps - len(self._pending)))
        return super().collect(pending)

    def _started(self, what: str, pending: ScriptedPending) -> ScriptedPending:
        self.trace.append((what, self.num_steps))
        self._pending.append(pending)
        return pending


def _is_asked_more(params: object) -> bool:
    return getattr(params, "num_logprobs", None) is not None or getattr(params, "wants_hidden_state", False)
