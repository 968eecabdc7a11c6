"""Reads rows of the native library's outputs: log-probabilities, and sums of hidden states. Numpy only."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import (
    FailureKind,
    PromptRead,
    ScheduledSequence,
    SequenceOutput,
    TokenLogprobs,
)
from appliance.engine.sequence import SamplingParams
from appliance.runtime.native_step import NativeOutputs
from appliance.runtime.sampling_needs import NOT_FINITE, failed


def log_softmax(logits_V: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithms of the softmax of finite logits, (V)."""
    shifted_V: NDArray[np.float32] = logits_V - logits_V.max()
    shifted_V -= np.float32(np.log(np.exp(shifted_V).sum(dtype=np.float64)))
    return shifted_V


def read_logprobs(
    logprobs_V: NDArray[np.float32], best_K: NDArray[np.int32], token_id: int, params: SamplingParams
) -> TokenLogprobs:
    """Return a token's log-probability, and those of the tokens asked for or the first of the best."""
    if params.scored_token_ids:
        return _logprobs(logprobs_V, np.array(params.scored_token_ids), token_id)
    return _logprobs(logprobs_V, best_K[: params.num_logprobs or 0], token_id)


def read_rows(
    outputs: NativeOutputs, sequences: Iterable[ScheduledSequence]
) -> Iterable[tuple[ScheduledSequence, SequenceOutput]]:
    """Each sequence that is read, with what was found; `outputs` holds their rows in order."""
    first = 0
    for sequence in sequences:
        count = len(sequence.read_positions)
        if sequence.prompt_read is not None and count:
            yield sequence, _read(outputs.rows(slice(first, first + count)), sequence, sequence.prompt_read)
        first += count


def _read(rows: NativeOutputs, sequence: ScheduledSequence, read: PromptRead) -> SequenceOutput:
    if read.num_logprobs is None:
        assert rows.hidden is not None
        hidden_sum = rows.hidden.sum(0, dtype=np.float64)
        if not np.isfinite(hidden_sum).all():
            return failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
        return SequenceOutput(sequence_id=sequence.sequence_id, hidden_sum=tuple(hidden_sum.tolist()))
    assert rows.logits is not None
    if not np.isfinite(rows.logits.sum()):
        return failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
    followed_by = (sequence.known_token_ids[position + 1] for position in sequence.read_positions)
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        prompt_logprobs=tuple(
            _logprobs(log_softmax(logits_V), best_K[: read.num_logprobs], token_id)
            for logits_V, best_K, token_id in zip(rows.logits, rows.best.ids, followed_by, strict=True)
        ),
    )


def _logprobs(
    logprobs_V: NDArray[np.float32], ids_K: NDArray[np.signedinteger], token_id: int
) -> TokenLogprobs:
    top = tuple(zip(ids_K.tolist(), logprobs_V[ids_K].tolist(), strict=True))
    return TokenLogprobs(logprob=float(logprobs_V[token_id]), top=top)
