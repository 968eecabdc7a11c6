"""Reads the rows of a step that lie inside prompts: log-probabilities, or the sum of hidden states.

Such rows stand behind those that choose tokens. Knows no queue and no choice of tokens.
"""

from collections.abc import Iterable

import torch

from appliance.engine.batch import (
    Batch,
    FailureKind,
    PromptRead,
    ScheduledSequence,
    SequenceOutput,
    TokenLogprobs,
)
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.sampling_needs import NOT_FINITE, failed


def split(outputs: ForwardOutputs, num_chosen: int) -> tuple[ForwardOutputs, ForwardOutputs]:
    """Return the first rows and those behind them."""
    return _rows(outputs, slice(num_chosen)), _rows(outputs, slice(num_chosen, None))


def read_rows(outputs: ForwardOutputs, batch: Batch) -> Iterable[tuple[ScheduledSequence, SequenceOutput]]:
    """Each sequence that is read, with what was found; `outputs` holds their rows in the batch's order."""
    first = 0
    for sequence in batch.sequences:
        count = len(sequence.read_positions)
        if sequence.prompt_read is not None and count:
            rows = _rows(outputs, slice(first, first + count))
            yield sequence, _read(rows, sequence, sequence.prompt_read)
        first += count


def _read(rows: ForwardOutputs, sequence: ScheduledSequence, read: PromptRead) -> SequenceOutput:
    if read.num_logprobs is None:
        assert rows.hidden is not None
        hidden_sum = rows.hidden.float().sum(0)
        if not bool(torch.isfinite(hidden_sum).all()):
            return failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
        return SequenceOutput(sequence_id=sequence.sequence_id, hidden_sum=tuple(hidden_sum.tolist()))
    assert rows.logits is not None
    if not bool(torch.isfinite(rows.logits.sum())):
        return failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
    logprobs_RV = rows.logits.log_softmax(-1)
    followed_by = [sequence.known_token_ids[position + 1] for position in sequence.read_positions]
    chosen_R1 = logprobs_RV.gather(1, torch.tensor(followed_by, device=logprobs_RV.device)[:, None])
    top = logprobs_RV.topk(read.num_logprobs, dim=-1)
    found = zip(chosen_R1[:, 0].tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    return SequenceOutput(
        sequence_id=sequence.sequence_id,
        prompt_logprobs=tuple(
            TokenLogprobs(logprob=logprob, top=tuple(zip(ids, values, strict=True)))
            for logprob, ids, values in found
        ),
    )


def _rows(outputs: ForwardOutputs, rows: slice) -> ForwardOutputs:
    return ForwardOutputs(
        logits=None if outputs.logits is None else outputs.logits[rows],
        hidden=None if outputs.hidden is None else outputs.hidden[rows],
    )
