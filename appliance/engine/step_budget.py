"""How much of prompts a step may compute: all that fits, or as much as the streams can bear.

Knows step times; knows no blocks and no clients.
"""

import math
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import Sequence
from appliance.engine.step_time import StepLoad, StepTimeModel

# One step in so many goes without prompts, so that what streams alone take stays known.
_PROBE_EVERY = 64
_FEWEST_OBSERVED = 8
_FIRST_CHUNK = 16  # until enough was observed, beside streams
# Chunks in slices of layers: in more steps they would read weights and context hardly less often for each
# token, and a prompt that comes meanwhile waits for their end.
_MOST_SLICES, _LONGEST_CHUNK_S = 16, 0.4
_MOST_WITH_QUEUE = 2.5  # times the slowdown, where many wait for their first token
# Of the newest step in the mean error of the predictions; steps without prompts are rare beside prompts.
_ALONE_WEIGHT, _BESIDE_WEIGHT, _MOST_OFF = 0.2, 0.05, 2.0


class StepBudget(Protocol):
    """Says how many prompt tokens the next step computes."""

    def prompt_tokens(
        self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence], *, num_waiting: int = 0
    ) -> int:
        """Tokens for prompts beside streams that get one each. 0 only if there are streams."""

    def share(self, streams: SequenceOf[Sequence], chunks: SequenceOf[ScheduledSequence]) -> float:
        """Of these prompt chunks, how much the next step has room for; 1 or more is all of them."""

    def observe(self, batch: Batch, step_s: float) -> None:
        """Take note of how long a step took."""

    def prompt_s(self, num_tokens: int) -> float | None:
        """What computing so many tokens of one prompt is expected to take; None before that is known."""


class FixedBudget:
    """Fills every step up to `step_tokens`."""

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens

    def prompt_tokens(
        self,
        streams: SequenceOf[Sequence],
        prompts: SequenceOf[Sequence],  # noqa: ARG002  # what they cost does not matter here
        *,
        num_waiting: int = 0,  # noqa: ARG002  # nor who else there is
    ) -> int:
        return self._step_tokens - len(streams)

    def share(
        self,
        streams: SequenceOf[Sequence],  # noqa: ARG002  # nobody's times matter
        chunks: SequenceOf[ScheduledSequence],  # noqa: ARG002
    ) -> float:
        return 1.0

    def observe(self, batch: Batch, step_s: float) -> None:
        pass

    def prompt_s(self, num_tokens: int) -> float | None:  # noqa: ARG002  # it looks at no times
        return None


class AdaptiveBudget:
    """Lets prompts take what the streams' target leaves: a step of at most `slowdown` times one without.

    Where more requests wait for their first token than streams run, a second costs more of those than of
    these: the steps may then grow with that ratio, up to 2.5 times `slowdown`. Without streams a step is
    filled up to `step_tokens`. Where the device can leave off between two of its `num_layers`, chunks are
    planned for several steps.
    """

    def __init__(
        self,
        step_tokens: int,
        *,
        slowdown: float = 1.88,
        num_layers: int = 0,
        model: StepTimeModel | None = None,
    ) -> None:
        self._step_tokens = step_tokens
        self._slowdown = slowdown
        self._num_layers = num_layers
        self._model = model or StepTimeModel()
        self._num_since_probe = 0
        self._spare_s = math.inf  # what the step that is planned has for prompts
        # Measured over predicted: no device is as linear as the model, and these two are what is promised.
        self._alone = _Ratio(_ALONE_WEIGHT)
        self._beside = _Ratio(_BESIDE_WEIGHT)

    def prompt_tokens(
        self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence], *, num_waiting: int = 0
    ) -> int:
        room = self._step_tokens - len(streams)
        self._spare_s = math.inf
        if not streams:
            self._num_since_probe = 0
            return room
        self._num_since_probe += 1
        if self._num_since_probe % _PROBE_EVERY == 0:
            return 0
        if self._model.num_observed < _FEWEST_OBSERVED:
            return min(room, _FIRST_CHUNK)
        slowdown = self._slowdown_for(len(streams), len(prompts) + num_waiting)
        # What any chunk costs may be more than a step has to spare: a few tokens a layer a step, then.
        least = _FIRST_CHUNK if self._num_layers > 1 else 1
        return min(room, max(least, self._tokens_in(slowdown, streams, prompts)))

    def share(self, streams: SequenceOf[Sequence], chunks: SequenceOf[ScheduledSequence]) -> float:
        beside = _load_of_streams(streams)
        load = beside
        for chunk in chunks:
            load += _load_of_chunk(chunk)
        chunks_s = self._model.predict_s(load) - self._model.predict_s(beside)
        return self._spare_s / chunks_s if chunks_s > 0 else math.inf

    def observe(self, batch: Batch, step_s: float) -> None:
        load = load_of(batch)
        if load.num_streams and self._model.num_observed >= _FEWEST_OBSERVED:
            ratio = self._beside if load.prompt_tokens else self._alone
            ratio.add(step_s, self._model.expected_s(load))
        self._model.observe(load, step_s)

    def prompt_s(self, num_tokens: int) -> float | None:
        if self._model.num_observed < _FEWEST_OBSERVED:
            return None
        num_steps = -(-num_tokens // self._step_tokens)
        load = StepLoad(
            context_tokens=num_tokens * (num_steps - 1) // 2,
            prompt_tokens=num_tokens,
            prompt_pairs=num_tokens**2 // 2,
        )
        return self._model.predict_s(load)

    def _slowdown_for(self, num_streams: int, num_without_token: int) -> float:
        fair = 1.0 + num_without_token / num_streams
        return max(self._slowdown, min(_MOST_WITH_QUEUE * self._slowdown, fair))

    def _tokens_in(
        self, slowdown: float, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence]
    ) -> int:
        """The tokens that are predicted to fit into the steps over which a chunk is spread.

        Cut off, not rounded: beside few streams one token is much, and the longest gap counts, not the mean.
        """
        beside = _load_of_streams(streams)
        alone_s = self._model.predict_s(beside)
        if alone_s <= 0:  # prompts alone were seen so far
            return _FIRST_CHUNK
        target_s = slowdown * alone_s * self._alone.value / self._beside.value
        self._spare_s = target_s - alone_s
        context = prompts[0].num_computed_tokens if prompts else 0
        none = beside + StepLoad(context_tokens=context, prompt_passes=1)
        few = none + StepLoad(prompt_tokens=64, prompt_pairs=64 * context)
        none_s = self._model.predict_s(none)
        token_s = (self._model.predict_s(few) - none_s) / 64
        left_s = self._spare_s * self._num_steps(target_s) - (none_s - alone_s)
        return int(left_s / token_s) if token_s > 0 else self._step_tokens

    def _num_steps(self, step_s: float) -> float:
        """Over how many steps a chunk goes, each with as many whole layers as the others but the last."""
        slices = min(_MOST_SLICES, self._num_layers, int(_LONGEST_CHUNK_S / step_s))
        return self._num_layers / math.ceil(self._num_layers / slices) if slices > 1 else 1.0


class _Ratio:
    """A moving mean of a ratio near 1."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.value = 1.0

    def add(self, measured: float, expected: float) -> None:
        if expected > 0:
            newest = min(_MOST_OFF, max(1 / _MOST_OFF, measured / expected))
            self.value += self._weight * (newest - self.value)


def _load_of_streams(streams: SequenceOf[Sequence]) -> StepLoad:
    read_back = sum([s.num_computed_tokens for s in streams])
    return StepLoad(num_streams=len(streams), context_tokens=read_back)


def _load_of_chunk(chunk: ScheduledSequence) -> StepLoad:
    num_new, context = len(chunk.new_token_ids), chunk.num_computed_tokens
    pairs = num_new * (context + num_new // 2)
    return StepLoad(context_tokens=context, prompt_tokens=num_new, prompt_pairs=pairs, prompt_passes=1)


def load_of(batch: Batch) -> StepLoad:
    """What a step's time depends on, of a batch."""
    num_streams = context_tokens = 0
    chunks = StepLoad()
    for scheduled in batch.sequences:
        if len(scheduled.new_token_ids) == 1 and scheduled.sampling is not None:
            num_streams += 1
            context_tokens += scheduled.num_computed_tokens
        else:
            chunks += _load_of_chunk(scheduled)
    if batch.slice:
        for scheduled in batch.slice.sequences:
            chunks += _load_of_chunk(scheduled) * batch.slice.share
    return chunks + StepLoad(num_streams=num_streams, context_tokens=context_tokens)
