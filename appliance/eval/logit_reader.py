"""Logits of whole texts, and greedy answers, of a loaded backend without an engine around it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.model.decoder import ForwardInputs
from appliance.runtime.backend import Backend
from appliance.runtime.inputs import build_inputs

# Tokens of a fresh context: past Gemma's window of 512.
WINDOW = 640
# Rows of logits at once: a vocabulary of 262,144 in float32 makes them 64 MiB.
CHUNK = 64
_ALL_LOGITS = SamplingParams(temperature=0.0, num_logprobs=0)


class LogitReader:
    """Runs one sequence at a time, in pages that it gives the backend."""

    def __init__(self, backend: Backend, max_tokens: int = WINDOW) -> None:
        self._backend = backend
        self._block_size = backend.kv_layout.block_size
        backend.attach_kv(-(-max(max_tokens, WINDOW) // self._block_size))

    def read(self, token_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield float32 (up to CHUNK, V) logits after each token of a text of at most `max_tokens`."""
        for start in range(0, len(token_ids), CHUNK):
            inputs = self._inputs(token_ids[start : start + CHUNK], start)
            yield self._logits(inputs)

    def continue_greedily(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Return the likeliest token, `num_tokens` times, of what fits in WINDOW."""
        new_ids, num_computed, answer = list(prompt_ids), 0, list[int]()
        while len(answer) < num_tokens and num_computed + len(new_ids) <= WINDOW:
            logits = self._logits(self._inputs(new_ids, num_computed))
            num_computed += len(new_ids)
            new_ids = [int(logits[-1].argmax())]
            answer += new_ids
        return answer

    def _logits(self, inputs: ForwardInputs) -> torch.Tensor:
        logits = self._backend.forward(inputs).logits
        assert logits is not None
        return logits

    def _inputs(self, new_ids: Sequence[int], num_computed: int) -> ForwardInputs:
        return step_inputs(new_ids, num_computed, self._block_size)


def step_inputs(new_ids: Sequence[int], num_computed: int, block_size: int) -> ForwardInputs:
    """Return the inputs of a step of one sequence, which has the pool's first pages."""
    num_known = num_computed + len(new_ids)
    sequence = ScheduledSequence(
        sequence_id=SequenceId(0),
        new_token_ids=tuple(new_ids),
        num_computed_tokens=num_computed,
        block_table=tuple(BlockId(i) for i in range(-(-num_known // block_size))),
        known_token_ids=(),
        num_prompt_tokens=num_known,
        sampling=_ALL_LOGITS,
    )
    inputs = build_inputs(Batch(sequences=(sequence,)), block_size=block_size)
    return replace(inputs, output_rows=torch.arange(num_known - num_computed))
