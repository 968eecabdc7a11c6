"""How many prompt tokens a step may compute: all that fit, or as many as the streams can bear.

Knows step times; knows no blocks and no clients.
"""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from appliance.engine.batch import Batch
from appliance.engine.sequence import Sequence
from appliance.engine.step_time import StepLoad, StepTimeModel

# Aim a little under the target: the predictions scatter.
_MARGIN = 0.95
# One step in so many goes without prompts, so that what streams alone take stays known.
_PROBE_EVERY = 32
_FEWEST_OBSERVED = 8
_FIRST_CHUNK = 16  # until enough was observed, beside streams


class StepBudget(Protocol):
    """Says how many prompt tokens the next step computes."""

    def prompt_tokens(self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence]) -> int:
        """Tokens for prompts beside streams that get one each. 0 only if there are streams."""

    def observe(self, batch: Batch, step_s: float) -> None:
        """Take note of how long a step took."""


class FixedBudget:
    """Fills every step up to `step_tokens`."""

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens

    def prompt_tokens(
        self,
        streams: SequenceOf[Sequence],
        prompts: SequenceOf[Sequence],  # noqa: ARG002  # what they cost does not matter here
    ) -> int:
        return self._step_tokens - len(streams)

    def observe(self, batch: Batch, step_s: float) -> None:
        pass


class AdaptiveBudget:
    """Lets prompts take what the streams' target leaves: a step of at most `slowdown` times one without.

    Without streams a step is filled up to `step_tokens`.
    """

    def __init__(
        self, step_tokens: int, *, slowdown: float = 2.0, model: StepTimeModel | None = None
    ) -> None:
        self._step_tokens = step_tokens
        self._slowdown = slowdown
        self._model = model or StepTimeModel()
        self._num_since_probe = 0

    def prompt_tokens(self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence]) -> int:
        room = self._step_tokens - len(streams)
        if not streams:
            self._num_since_probe = 0
            return room
        self._num_since_probe += 1
        if self._num_since_probe % _PROBE_EVERY == 0:
            return 0
        if self._model.num_observed < _FEWEST_OBSERVED:
            return min(room, _FIRST_CHUNK)
        return max(1, min(room, self._tokens_in_target(streams, prompts)))

    def observe(self, batch: Batch, step_s: float) -> None:
        self._model.observe(_load_of(batch), step_s)

    def _tokens_in_target(self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence]) -> int:
        """The most tokens that are predicted to fit; linear in them, as the pairs of one token are alike."""
        context = sum(s.num_computed_tokens for s in streams)
        alone = StepLoad(num_streams=len(streams), stream_context=context)
        prompt_context = prompts[0].num_computed_tokens if prompts else 0
        with_64 = StepLoad(
            num_streams=len(streams),
            stream_context=context,
            prompt_tokens=64,
            prompt_pairs=64 * prompt_context,
        )
        alone_s = self._model.predict_s(alone)
        token_s = (self._model.predict_s(with_64) - alone_s) / 64
        spare_s = (_MARGIN * self._slowdown - 1.0) * alone_s
        return int(spare_s / token_s) if token_s > 0 else self._step_tokens


def _load_of(batch: Batch) -> StepLoad:
    num_streams = stream_context = prompt_tokens = prompt_pairs = 0
    for scheduled in batch.sequences:
        num_new, context = scheduled.num_new_tokens, scheduled.num_computed_tokens
        if num_new == 1:
            num_streams += 1
            stream_context += context
        else:
            prompt_tokens += num_new
            prompt_pairs += num_new * (context + num_new // 2)
    return StepLoad(
        num_streams=num_streams,
        stream_context=stream_context,
        prompt_tokens=prompt_tokens,
        prompt_pairs=prompt_pairs,
    )
