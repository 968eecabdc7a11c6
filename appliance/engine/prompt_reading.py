"""Gathers what steps find at every position of a prompt, not only at its end. Knows no tensors and no blocks.

A prompt that is read so shares no computed prefix: what is asked for comes out of computing it. It may be
computed twice, after preemption, and is read once.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from appliance.engine.batch import PromptRead, ScheduledSequence, SequenceOutput, TokenLogprobs
from appliance.engine.sequence import Sequence, SequenceId

# Positions in one step: their logits over a vocabulary of 262,144 in float32 take 64 MiB.
MOST_AT_ONCE = 64


@dataclass(slots=True, kw_only=True)
class _Found:
    num_positions: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    hidden_sum: list[float] = field(default_factory=list)


class PromptReadings:
    """One for each live sequence that wants its prompt read."""

    def __init__(self) -> None:
        self._found: dict[SequenceId, _Found] = {}

    def cut(self, shares: SequenceOf[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """The same shares of a step, those that are read no larger than their rows may be."""
        return [(s, min(num, MOST_AT_ONCE) if s.params.reads_prompt else num) for s, num in shares]

    def wanted(self, sequence: Sequence) -> PromptRead | None:
        """What the next step is to read of it."""
        if not sequence.params.reads_prompt:
            return None
        found = self._found.setdefault(sequence.sequence_id, _Found())
        return PromptRead(first=found.num_positions, num_logprobs=sequence.params.num_prompt_logprobs)

    def take(self, scheduled: ScheduledSequence, output: SequenceOutput) -> None:
        """Note what a step found; its positions follow on those before."""
        if scheduled.prompt_read is None:
            return
        found = self._found[scheduled.sequence_id]
        found.num_positions += len(scheduled.read_positions)
        found.logprobs += output.prompt_logprobs
        if output.hidden_sum:
            found.hidden_sum = _sum(found.hidden_sum, output.hidden_sum)

    def logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs, ...]:
        """Of every token of the prompt but the first, which nothing stands before."""
        found = self._found.get(sequence.sequence_id)
        return tuple(found.logprobs) if found is not None else ()

    def mean_state(self, sequence: Sequence, last: tuple[float, ...]) -> tuple[float, ...]:
        """The mean of the prompt's states; `last` is the one at its end."""
        total = _sum(self._found[sequence.sequence_id].hidden_sum, last)
        return tuple(value / sequence.num_prompt_tokens for value in total)

    def forget(self, sequence: Sequence) -> None:
        self._found.pop(sequence.sequence_id, None)


def _sum(first: list[float], second: tuple[float, ...]) -> list[float]:
    return [a + b for a, b in zip(first, second, strict=True)] if first else list(second)
