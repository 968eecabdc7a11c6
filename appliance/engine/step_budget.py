"""How many prompt tokens a step may compute: all that fit, or as many as the streams can bear.

Knows step times; knows no blocks and no clients.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Protocol

from appliance.engine.batch import Batch
from appliance.engine.sequence import Sequence
from appliance.engine.step_time import StepLoad, StepTimeModel

# One step in so many goes without prompts, so that what streams alone take stays known.
_PROBE_EVERY = 64
_FEWEST_OBSERVED = 8
_FIRST_CHUNK = 16  # until enough was observed, beside streams
# A stream of 33 tokens a second is ahead of any reader. Where steps without prompts are far shorter, a
# multiple of them would feed a prompt in crumbs, each at the price of reading weights and context again.
_FINE_STEP_S = 0.030
# Of the newest step in the mean error of the predictions; steps without prompts are rare beside prompts.
_ALONE_WEIGHT, _BESIDE_WEIGHT, _MOST_OFF = 0.2, 0.05, 2.0


class StepBudget(Protocol):
    """Says how many prompt tokens the next step computes."""

    def prompt_tokens(
        self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence], *, num_waiting: int = 0
    ) -> int:
        """Tokens for prompts beside streams that get one each. 0 only if there are streams."""

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

    def observe(self, batch: Batch, step_s: float) -> None:
        pass

    def prompt_s(self, num_tokens: int) -> float | None:  # noqa: ARG002  # it looks at no times
        return None


class AdaptiveBudget:
    """Lets prompts take what the streams' target leaves: a step of at most `slowdown` times one without, or
    of 30 ms where that is more.

    Where more requests wait for their first token than streams run, a second costs more of those than of
    these: the steps may then grow with that ratio, up to `slowdown` squared. Without streams a step is
    filled up to `step_tokens`.
    """

    def __init__(
        self, step_tokens: int, *, slowdown: float = 2.15, model: StepTimeModel | None = None
    ) -> None:
        self._step_tokens = step_tokens
        self._slowdown = slowdown
        self._model = model or StepTimeModel()
        self._num_since_probe = 0
        # Measured over predicted: no device is as linear as the model, and these two are what is promised.
        self._alone = _Ratio(_ALONE_WEIGHT)
        self._beside = _Ratio(_BESIDE_WEIGHT)

    def prompt_tokens(
        self, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence], *, num_waiting: int = 0
    ) -> int:
        room = self._step_tokens - len(streams)
        if not streams:
            self._num_since_probe = 0
            return room
        self._num_since_probe += 1
        if self._num_since_probe % _PROBE_EVERY == 0:
            return 0
        if self._model.num_observed < _FEWEST_OBSERVED:
            return min(room, _FIRST_CHUNK)
        slowdown = self._slowdown_for(len(streams), len(prompts) + num_waiting)
        return max(1, min(room, self._tokens_in(slowdown, streams, prompts)))

    def observe(self, batch: Batch, step_s: float) -> None:
        load = _load_of(batch)
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
        return max(self._slowdown, min(self._slowdown**2, fair))

    def _tokens_in(
        self, slowdown: float, streams: SequenceOf[Sequence], prompts: SequenceOf[Sequence]
    ) -> int:
        """The tokens that are predicted to fit.

        Cut off, not rounded: beside few streams one token is much, and the longest gap counts, not the mean.
        """
        read_back = sum(s.num_computed_tokens for s in streams)
        prompt_context = prompts[0].num_computed_tokens if prompts else 0
        alone_s = self._model.predict_s(StepLoad(num_streams=len(streams), context_tokens=read_back))
        begun = StepLoad(num_streams=len(streams), context_tokens=read_back + prompt_context)
        few_s, more_s = (
            self._model.predict_s(replace(begun, prompt_tokens=n, prompt_pairs=n * prompt_context))
            for n in (64, 128)
        )
        token_s = (more_s - few_s) / 64
        begun_s = few_s - 64 * token_s
        target_s = max(slowdown * alone_s * self._alone.value, _FINE_STEP_S) / self._beside.value
        return int((target_s - begun_s) / token_s) if token_s > 0 else self._step_tokens


class _Ratio:
    """A moving mean of a ratio near 1."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.value = 1.0

    def add(self, measured: float, expected: float) -> None:
        if expected > 0:
            newest = min(_MOST_OFF, max(1 / _MOST_OFF, measured / expected))
            self.value += self._weight * (newest - self.value)


def _load_of(batch: Batch) -> StepLoad:
    num_streams = context_tokens = prompt_tokens = prompt_pairs = 0
    for scheduled in batch.sequences:
        num_new, context = len(scheduled.new_token_ids), scheduled.num_computed_tokens
        context_tokens += context
        if num_new == 1 and scheduled.sampling is not None:
            num_streams += 1
        else:
            prompt_tokens += num_new
            prompt_pairs += num_new * (context + num_new // 2)
    return StepLoad(
        num_streams=num_streams,
        context_tokens=context_tokens,
        prompt_tokens=prompt_tokens,
        prompt_pairs=prompt_pairs,
    )
