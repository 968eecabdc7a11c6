"""The value handed to the data plane: one step's work, and what came of it. Knows no tensors."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from appliance.engine.constraint import Constraint
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId

# Stands for the token that the step before chooses, while only the device knows it.
UNKNOWN_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """Copy one block's content, in every layer."""

    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Copy one block's content, in every layer, to a place in host memory, or back."""

    block: BlockId
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead:
    """What to read of a prompt's positions from `first` on, but for the last, whose row chooses a token.

    `num_logprobs` is how many likeliest tokens to tell beside the one that follows; None asks for the sum of
    the hidden states instead.
    """

    first: int
    num_logprobs: int | None


# One of these a sequence and step: frozen, it would take 2.7 us to make, and takes 0.6.
@dataclass(slots=True, kw_only=True)
class ScheduledSequence:
    """One sequence's share of a step: compute `new_token_ids` at positions from `num_computed_tokens` on.

    `block_table` covers every position up to the last new token. `known_token_ids` is the engine's own
    list, prompt then output, which only ever grows: its first `num_known_tokens` stay as they are, so they
    may be read until `collect` even when later steps were launched. `sampling` is None where the step
    ends inside the prompt and no token is to be chosen. `block_copy` is to be done before the step computes.
    Never changed once made.
    """

    sequence_id: SequenceId
    new_token_ids: tuple[int, ...]
    num_computed_tokens: int
    block_table: tuple[BlockId, ...]
    known_token_ids: SequenceOf[int]
    num_prompt_tokens: int
    sampling: SamplingParams | None
    block_copy: BlockCopy | None = None
    constraint: Constraint | None = None  # on the token to be chosen
    prompt_read: PromptRead | None = None

    @property
    def num_new_tokens(self) -> int:
        return len(self.new_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens known once this step is done: where it samples, all that were known at its launch."""
        return self.num_computed_tokens + len(self.new_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens before the one that this step samples."""
        return self.num_known_tokens - self.num_prompt_tokens

    @property
    def read_positions(self) -> range:
        """Positions of this step inside the prompt whose rows are wanted."""
        if self.prompt_read is None:
            return range(0)
        first = max(self.prompt_read.first, self.num_computed_tokens)
        return range(first, max(first, min(self.num_known_tokens, self.num_prompt_tokens - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSlice:
    """Some layers of prompt chunks that several steps compute together.

    The same sequences come in step after step, from the first layer to the last: their chunks are computed
    with the last one, and only then does anybody get a token.
    """

    sequences: tuple[ScheduledSequence, ...]
    first_layer: int
    end_layer: int
    num_layers: int  # of the network

    @property
    def is_first(self) -> bool:
        return self.first_layer == 0

    @property
    def is_last(self) -> bool:
        return self.end_layer == self.num_layers

    @property
    def share(self) -> float:
        """Of the whole network's layers."""
        return (self.end_layer - self.first_layer) / self.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step: any mix of prompt chunks and single next tokens, and perhaps some layers of other chunks.

    Before it computes, its blocks are copied: `saves`, then `restores`, then `block_copies`.
    """

    sequences: tuple[ScheduledSequence, ...]
    slice: PromptSlice | None = None
    saves: tuple[HostCopy, ...] = ()
    restores: tuple[HostCopy, ...] = ()

    @property
    def num_new_tokens(self) -> int:
        """Of the sequences that are computed in this step alone."""
        return sum(s.num_new_tokens for s in self.sequences)

    @property
    def every_sequence(self) -> tuple[ScheduledSequence, ...]:
        """Those of the slice behind the others."""
        return self.sequences if self.slice is None else self.sequences + self.slice.sequences

    @property
    def finished_sequences(self) -> tuple[ScheduledSequence, ...]:
        """Those whose new tokens are computed when the step is done."""
        return self.every_sequence if self.slice and self.slice.is_last else self.sequences

    @property
    def block_copies(self) -> tuple[BlockCopy, ...]:
        """In the order to do them: a target may be the next one's source."""
        begun = self.every_sequence if self.slice and self.slice.is_first else self.sequences
        return tuple(s.block_copy for s in begun if s.block_copy is not None)

    def __bool__(self) -> bool:
        return bool(self.sequences) or self.slice is not None


class FailureKind(StrEnum):
    """Why one sequence of a step came to nothing."""

    NOT_FINITE = "not_finite"
    OUT_OF_MEMORY = "out_of_memory"
    CONSTRAINT = "constraint"  # a grammar took too much work
    RUNNER = "runner"  # the whole step raised; every sequence in it carries this


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the distribution before temperature and cuts.

    `top` holds (token id, logprob) from the likeliest down, as many as were asked for.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, kw_only=True)  # not frozen for speed, as ScheduledSequence is not
class SequenceOutput:
    """What a step gave one sequence. Several token ids only with speculation; none inside a prompt.

    Never changed once made.
    """

    sequence_id: SequenceId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    hidden_state: tuple[float, ...] | None = None  # of the last new token
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the tokens that follow `read_positions`
    hidden_sum: tuple[float, ...] = ()  # over `read_positions`
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One output for each of `every_sequence`, in the batch's order; no tokens where layers are missing."""

    outputs: tuple[SequenceOutput, ...]


class Pending(Protocol):
    """A step under way; opaque to the engine."""

    @property
    def batch(self) -> Batch: ...


class Runner(Protocol):
    """Runs steps. `launch` may return before the device is done; `collect` waits for it.

    A failure of one sequence is a `SequenceOutput.failure`; an exception means the whole step failed.
    """

    def launch(self, batch: Batch) -> Pending: ...

    def collect(self, pending: Pending) -> StepResult: ...


@runtime_checkable
class LeadingRunner(Protocol):
    """A Runner whose device can go on to the next step before anybody has read what the last one chose."""

    def leads(self, pending: Pending) -> bool:
        """Whether this step's tokens will be on the device for the next one, and need nothing of the host."""

    def launch_next(self, pending: Pending, batch: Batch) -> Pending | None:
        """Start the step after `pending`, which is collected first; each new token is UNKNOWN_TOKEN.

        A sequence may have ended with `pending`: what this step computes of it goes to waste, in blocks that
        nobody else uses in a step launched before this one. None where it was not started.
        """
