"""The steps under way, at most two, and who is to end with the next one. Knows ids and times; no blocks."""

from appliance.engine.batch import Batch
from appliance.engine.sequence import FinishReason, SequenceId


class StepsInFlight:
    """The second step, if there is one, was started before the first one's tokens were known."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._ids: list[frozenset[SequenceId]] = []
        self._since_s = 0.0  # when the device began with the first
        self._endings: dict[SequenceId, FinishReason] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return any(sequence_id in ids for ids in self._ids)

    @property
    def last(self) -> Batch:
        return self._batches[-1]

    @property
    def is_past_prompts(self) -> bool:
        """Whether the last step computes no token of a prompt, so that prompts kept nobody from starting."""
        return all(s.num_computed_tokens >= s.num_prompt_tokens for s in self.last.every_sequence)

    def begin(self, batch: Batch, now_s: float) -> Batch:
        """Count a step as under way, unless it is empty; return it."""
        if not batch:
            return batch
        assert len(self) < 2, "two steps are under way"
        if not self._batches:
            self._since_s = now_s
        self._batches.append(batch)
        self._ids.append(frozenset([s.sequence_id for s in batch.every_sequence]))
        return batch

    def withdraw(self) -> None:
        """Take the last step back: it was not started."""
        self._batches.pop()
        self._ids.pop()

    def finish(self, batch: Batch, now_s: float) -> float:
        """The first step is done; return the seconds that it took since the one before it."""
        assert self._batches[0] is batch, "not the batch in flight"
        del self._batches[0], self._ids[0]
        took_s, self._since_s = now_s - self._since_s, now_s
        return took_s

    def end_after(self, sequence_id: SequenceId, reason: FinishReason) -> None:
        """Have a sequence end once the first step that it is in is done. The first reason stands."""
        self._endings.setdefault(sequence_id, reason)

    def is_ending(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._endings

    def take_ending(self, sequence_id: SequenceId) -> FinishReason | None:
        return self._endings.pop(sequence_id, None) if self._endings else None
