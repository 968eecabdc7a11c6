"""One generation: its tokens, its blocks, its state. Knows no tensors and no clients."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from appliance.engine.constraint import Constraint

SequenceId = NewType("SequenceId", int)
BlockId = NewType("BlockId", int)


class SequenceStatus(StrEnum):
    """Where a sequence stands. A preempted sequence is waiting again, with its tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class ServiceClass(StrEnum):
    """How much of the appliance a sequence is worth when there is not enough for all, best first."""

    GOLD = "gold"
    SILVER = "silver"
    BRONZE = "bronze"


class Lane(StrEnum):
    """Sequences of little expected work have a lane of their own, so that long ones cannot hold them up."""

    SHORT = "short"
    LONG = "long"


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # a stop token, or the client saw its stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the client is gone, or the appliance is stopping
    DEADLINE = "deadline"  # waited too long, or was not done in time: the tokens so far count
    UNREAD = "unread"  # its reader fell too far behind
    ERROR = "error"  # this sequence failed; the others did not


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. Values are checked where they come in (server, command line).

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. Penalties follow the usual
    definitions: repetition (multiplicative, prompt and output), presence and frequency (additive, output).
    A `seed` makes the choice a function of (seed, index of the output token) alone.
    """

    max_tokens: int | None = None  # None: until a stop token or the context's end
    min_tokens: int = 0  # stop tokens cannot be chosen before
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, added to its logit
    stop_token_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None  # None: none; 0: the chosen token's only
    scored_token_ids: tuple[int, ...] = ()  # with log-probabilities: of these, in place of the likeliest
    wants_hidden_state: bool = False
    num_prompt_logprobs: int | None = None  # of the prompt's own tokens; None and 0 as above
    wants_mean_state: bool = False  # the hidden state is the mean over the prompt

    @property
    def reads_prompt(self) -> bool:
        """Whether every position of the prompt is asked for something."""
        return self.num_prompt_logprobs is not None or self.wants_mean_state

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        neutral = (1.0, 0.0, 0.0)
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != neutral


@dataclass(slots=True, kw_only=True)
class Sequence:
    """Mutable state of one generation; guarded by the engine's lock.

    `token_ids` holds the prompt and then the output. The scheduler lets `num_computed_tokens` catch up
    with `num_tokens`; when they meet, the next token is sampled.
    """

    sequence_id: SequenceId
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    max_output_tokens: int  # params.max_tokens cut to what the context leaves
    arrival_s: float  # monotonic clock
    deadline_s: float | None = None  # monotonic clock; only the wait for a first step counts
    end_by_s: float | None = None  # monotonic clock; ends it in any state, with the tokens so far
    service_class: ServiceClass = ServiceClass.SILVER
    lane: Lane = Lane.SHORT  # set when it is queued, from its expected work
    expected_output_tokens: int = 0  # set when it is queued; a guess where the client named no limit
    cache_salt: str = ""
    constraint: Constraint | None = None
    num_computed_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    block_table: tuple[BlockId, ...] = ()
    spare_block: BlockId | None = None  # for a copy of a shared block, made in the step that writes to it
    fork_of: "Sequence | None" = None  # the same prompt under way: this one takes over its blocks
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    failure: str | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def expected_work(self) -> int:
        """Tokens that it is expected to take in all, prompt and output."""
        return self.num_prompt_tokens + self.expected_output_tokens

    def note_tokens(self, now_s: float) -> None:
        """Remember when its last tokens came, and its first."""
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED
