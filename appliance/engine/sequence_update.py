"""What a step gave one sequence, as the scheduler tells the engine. Knows no stream."""

from dataclasses import dataclass

from appliance.engine.batch import StepFailure, TokenLogprobs
from appliance.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True)  # not frozen for speed, as ScheduledSequence is not
class SequenceUpdate:
    """What a step gave one sequence; whether and why it ended is told by the sequence."""

    sequence: Sequence
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    hidden_state: tuple[float, ...] | None = None
    ends_with_stop_token: bool = False
    failure: StepFailure | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
