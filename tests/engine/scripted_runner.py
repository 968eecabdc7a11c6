"""A runner without a model: the next token is a function of every token before it, read from a fake KV.

The fake KV keeps, per slot, a digest of the whole history up to that token. Each step writes its slots and
reads the whole context back through the block table, so a stale, shared or missing block, a wrong position
or a lost token is found where it happens, and `solo` says what any sequence should have got.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from appliance.engine.batch import (
    Batch,
    PromptSlice,
    ScheduledSequence,
    SequenceOutput,
    StepFailure,
    StepResult,
    TokenLogprobs,
)
from appliance.engine.constraint import Constraint
from appliance.engine.sequence import SamplingParams

_MASK = 2**64 - 1
_NUM_KEPT_BATCHES = 10_000


@dataclass(frozen=True, slots=True)
class ScriptedPending:
    batch: Batch
    result: StepResult


class ScriptedRunner:
    """Satisfies `Runner`. Give it the pool's shape; the rest may be changed between steps.

    replies: fixed output tokens by output index (the last repeats) in place of the function of the history.
    step_s, token_s: seconds that a step and each new token take, spent in `collect` by `sleep`.
    fail: returns a StepFailure for the sequences that are to fail. error: raised by the next launches.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 1000,
        replies: SequenceOf[int] | None = None,
        step_s: float = 0.0,
        token_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.replies = replies
        self.step_s = step_s
        self.token_s = token_s
        self.fail: Callable[[ScheduledSequence], StepFailure | None] = lambda _: None
        self.error: Exception | None = None
        self.num_steps = 0
        self.batches: deque[Batch] = deque(maxlen=_NUM_KEPT_BATCHES)
        self._sleep = sleep
        self._kv: list[int | None] = [None] * (num_blocks * block_size)
        self._slice: PromptSlice | None = None
        self._host: dict[int, list[int | None]] = {}

    def launch(self, batch: Batch) -> ScriptedPending:
        self.num_steps += 1
        self.batches.append(batch)
        if self.error is not None:
            raise self.error
        self._copy_blocks(batch)
        finished = batch.finished_sequences
        digests = [_digests(s.known_token_ids) for s in finished]
        self._spoil_half_computed(batch)
        self._write(finished, digests)
        outputs = [self._output(s, d) for s, d in zip(finished, digests, strict=True)]
        for scheduled in batch.every_sequence[len(finished) :]:
            failure = self.fail(scheduled)
            outputs.append(SequenceOutput(sequence_id=scheduled.sequence_id, failure=failure))
        return ScriptedPending(batch, StepResult(outputs=tuple(outputs)))

    def collect(self, pending: ScriptedPending) -> StepResult:
        seconds = self.step_s + self.token_s * pending.batch.num_new_tokens
        if seconds:
            self._sleep(seconds)
        return pending.result

    def solo(self, prompt: SequenceOf[int], params: SamplingParams, *, limit: int) -> tuple[int, ...]:
        """The output of `prompt` undisturbed, where `limit` is the most tokens, prompt included."""
        known = list(prompt)
        most = min(limit - len(prompt), limit if params.max_tokens is None else params.max_tokens)
        for index in range(most):
            known.append(self._choose(_digests(known)[-1], index, params))
            if known[-1] in params.stop_token_ids:
                break
        return tuple(known[len(prompt) :])

    def _copy_blocks(self, batch: Batch) -> None:
        size = self.block_size
        for save in batch.saves:
            self._host[save.place] = self._kv[save.block * size : (save.block + 1) * size]
        for restore in batch.restores:
            self._kv[restore.block * size : (restore.block + 1) * size] = self._host[restore.place]
        for copy in batch.block_copies:
            source, target = copy.source * size, copy.target * size
            self._kv[target : target + size] = self._kv[source : source + size]

    def _spoil_half_computed(self, batch: Batch) -> None:
        """Slices come in order, and until the last one the slots of their tokens are of no use to anybody."""
        piece = batch.slice
        if piece is None:
            return
        assert 0 <= piece.first_layer < piece.end_layer <= piece.num_layers
        if piece.first_layer:
            assert self._slice is not None, "a slice without the one before"
            assert self._slice.sequences == piece.sequences, "other chunks than in the slice before"
            assert self._slice.end_layer == piece.first_layer, "layers left out or computed twice"
        self._slice = piece
        for scheduled in piece.sequences:
            for i in range(scheduled.num_new_tokens):
                self._kv[self._slot(scheduled, scheduled.num_computed_tokens + i)] = None

    def _write(self, finished: SequenceOf[ScheduledSequence], digests: list[list[int]]) -> None:
        written: set[int] = set()
        for scheduled, own_digests in zip(finished, digests, strict=True):
            first = scheduled.num_computed_tokens
            expected = tuple(scheduled.known_token_ids[first : first + scheduled.num_new_tokens])
            assert scheduled.new_token_ids == expected, "the new tokens are not the next known ones"
            for position in range(first, first + scheduled.num_new_tokens):
                slot = self._slot(scheduled, position)
                assert slot not in written, "two sequences write one slot"
                written.add(slot)
                self._kv[slot] = own_digests[position]

    def _output(self, scheduled: ScheduledSequence, digests: list[int]) -> SequenceOutput:
        failure = self.fail(scheduled)
        if failure is not None:
            return SequenceOutput(sequence_id=scheduled.sequence_id, failure=failure)
        digest = self._read_back(scheduled, digests)
        params = scheduled.sampling
        read = self._read_prompt(scheduled)
        if params is None:
            return read
        token_id = self._choose(digest, scheduled.num_output_tokens, params)
        if scheduled.constraint is not None:
            token_id = _allowed(scheduled.constraint, token_id)
        return SequenceOutput(
            sequence_id=scheduled.sequence_id,
            token_ids=(token_id,),
            logprobs=None if params.num_logprobs is None else (self._logprobs(token_id, params),),
            hidden_state=(digest / 2**64, float(token_id)) if params.wants_hidden_state else None,
            prompt_logprobs=read.prompt_logprobs,
            hidden_sum=read.hidden_sum,
        )

    def _read_prompt(self, scheduled: ScheduledSequence) -> SequenceOutput:
        """Inside the prompt a token's log-probability is less its place, and each state is (1, 1)."""
        read, positions = scheduled.prompt_read, scheduled.read_positions
        if read is None or read.num_logprobs is None:
            num = float(len(positions))
            return SequenceOutput(sequence_id=scheduled.sequence_id, hidden_sum=(num, num) if num else ())
        found = (
            TokenLogprobs(logprob=-float(p + 1), top=tuple((t, -0.5) for t in range(read.num_logprobs)))
            for p in positions
        )
        return SequenceOutput(sequence_id=scheduled.sequence_id, prompt_logprobs=tuple(found))

    def _read_back(self, scheduled: ScheduledSequence, digests: list[int]) -> int:
        """Check every token of the context through the block table; return the last digest."""
        end = scheduled.num_computed_tokens + scheduled.num_new_tokens
        for position in range(end):
            found = self._kv[self._slot(scheduled, position)]
            assert found == digests[position], (
                f"position {position} of sequence {scheduled.sequence_id} holds another history"
            )
        return digests[end - 1]

    def _slot(self, scheduled: ScheduledSequence, position: int) -> int:
        block_id = scheduled.block_table[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def _choose(self, digest: int, index: int, params: SamplingParams) -> int:
        if self.replies is not None:
            return self.replies[min(index, len(self.replies) - 1)]
        token_id = (digest >> 33) % self.vocab_size
        while index < params.min_tokens and token_id in params.stop_token_ids:
            token_id = (token_id + 1) % self.vocab_size
        return token_id

    def _logprobs(self, token_id: int, params: SamplingParams) -> TokenLogprobs:
        ids = params.scored_token_ids or range(token_id, token_id + (params.num_logprobs or 0))
        top = tuple((each % self.vocab_size, -0.5 - rank) for rank, each in enumerate(ids))
        return TokenLogprobs(logprob=-0.5, top=top)


def _allowed(constraint: Constraint, wanted: int) -> int:
    """The wanted token where the constraint allows it, else the first that it allows."""
    words = (ctypes.c_uint32 * constraint.num_mask_words)()
    constraint.fill_mask(ctypes.addressof(words))
    mask = int.from_bytes(bytes(words), "little")
    assert mask, "the constraint allows nothing"
    return wanted if mask >> wanted & 1 else (mask & -mask).bit_length() - 1


def _digests(token_ids: SequenceOf[int]) -> list[int]:
    """Per position, a number that depends on every token up to it and on their order."""
    digests, digest = [], 0x9E3779B97F4A7C15
    for token_id in token_ids:
        digest = ((digest ^ (token_id + 1)) * 6364136223846793005 + 1442695040888963407) & _MASK
        digest ^= digest >> 29
        digests.append(digest)
    return digests
