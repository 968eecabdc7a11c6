"""Chooses tokens, each sequence by its own rules and its own random numbers. Knows no queue.

Rows are treated one by one, and by rules that depend on the row alone, so that what a sequence gets never
depends on its neighbours. The order of cuts is temperature, top-k, top-p, min-p; a token is drawn in
vocabulary order, so that a difference in the last bit of a logit moves a border between two tokens by that
much and no further.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import torch

from appliance.engine.batch import FailureKind, ScheduledSequence, SequenceOutput, TokenLogprobs
from appliance.engine.sequence import SamplingParams, SequenceId
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.masks import Mask
from appliance.runtime.row_rules import LEAST_TEMPERATURE, uniform
from appliance.runtime.sampling_needs import MAX_CANDIDATES, NOT_FINITE, failed, holds_back_stops

# A nucleus this wide is found without sorting the whole vocabulary.
_NUCLEUS_GUESS = 1024
# Cumulated at once; the sums of chunks come first, so that a draw reads the vocabulary twice, in order.
_DRAW_CHUNK = 256


def sample(
    outputs: ForwardOutputs,
    sequences: SequenceOf[ScheduledSequence],
    masks: Mapping[SequenceId, Mask] | None = None,
) -> list[SequenceOutput]:
    """Return one output per output row. Logits may be changed; each sequence has `sampling`.

    `masks` holds those of the sequences that have a constraint.
    """
    if not sequences:
        return []
    assert outputs.logits is not None
    # A sum is finite only if each term is, but for overflow, which no softmax survives either.
    is_finite: list[bool] = torch.isfinite(outputs.logits.sum(-1)).tolist()
    return [
        _sample_row(outputs.logits[row], sequence, (masks or {}).get(sequence.sequence_id))
        if is_finite[row]
        else failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
        for row, sequence in enumerate(sequences)
    ]


def _sample_row(logits_V: torch.Tensor, sequence: ScheduledSequence, mask: Mask | None) -> SequenceOutput:
    params = sequence.sampling
    assert params is not None
    if mask is not None and mask.error is not None:
        return failed(sequence, FailureKind.CONSTRAINT, mask.error)
    raw_logprobs_V = None if params.num_logprobs is None else logits_V.log_softmax(-1)
    change_logits(logits_V, sequence, params)
    if mask is not None:
        _block(logits_V, mask)
    if holds_back_stops(sequence, params):
        _hold_back(logits_V, params.stop_token_ids)
    if params.is_greedy:
        token_id = int(logits_V.argmax())
    else:
        token_id = choose(logits_V, params, uniform(params.seed, sequence.num_output_tokens))
    logprobs = None if raw_logprobs_V is None else (read_logprobs(raw_logprobs_V, token_id, params),)
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,), logprobs=logprobs)


def change_logits(logits_V: torch.Tensor, sequence: ScheduledSequence, params: SamplingParams) -> None:
    """Apply penalties and biases, in place."""
    if params.has_penalties:
        apply_penalties(logits_V, sequence, params)
    for token_id, bias in params.logit_bias:
        logits_V[token_id] += bias


def _block(logits_V: torch.Tensor, mask: Mask) -> None:
    """A grammar knows the tokenizer's tokens; a mask is whole words, and logits may have rows beyond both."""
    allowed_V = torch.from_numpy(mask.allowed(len(logits_V))).to(logits_V.device)
    logits_V.masked_fill_(~allowed_V, -math.inf)


def _hold_back(logits_V: torch.Tensor, stop_token_ids: frozenset[int]) -> None:
    """Where a grammar leaves nothing else, its end comes sooner than `min_tokens`."""
    known = [token_id for token_id in stop_token_ids if token_id < len(logits_V)]
    stops = torch.tensor(known, dtype=torch.int64, device=logits_V.device)
    kept = logits_V[stops]
    logits_V[stops] = -math.inf
    if logits_V.max() == -math.inf:
        logits_V[stops] = kept


def choose(logits_V: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Draw from the cut distribution over the whole vocabulary."""
    if 0 < params.top_k <= min(MAX_CANDIDATES, len(logits_V)):
        values_K, ids_K = logits_V.topk(params.top_k)
        return choose_among(ids_K, values_K, params, number)
    scaled_V = logits_V / _temperature(params)
    if 0 < params.top_k < len(scaled_V):
        scaled_V.masked_fill_(scaled_V < scaled_V.topk(params.top_k).values[-1], -math.inf)
    return draw(_cut(scaled_V.softmax(-1), params), number)


def choose_among(ids_K: torch.Tensor, values_K: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Draw from the cut distribution over the best tokens only."""
    order = ids_K.argsort()
    probs_K = (values_K[order] / _temperature(params)).softmax(-1)
    return int(ids_K[order[draw(_cut(probs_K, params), number)]])


def _temperature(params: SamplingParams) -> float:
    return max(params.temperature, LEAST_TEMPERATURE)


def _cut(probs_V: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if params.top_p < 1.0:
        probs_V.masked_fill_(probs_V < nucleus_threshold(probs_V, params.top_p), 0.0)
    if params.min_p > 0.0:
        probs_V.masked_fill_(probs_V < probs_V.max() * params.min_p, 0.0)
    return probs_V


def draw(weights_V: torch.Tensor, number: float) -> int:
    """Return the index at which the running total of the weights passes `number` of the whole."""
    padding = -len(weights_V) % _DRAW_CHUNK
    chunks_CW = torch.nn.functional.pad(weights_V, (0, padding)).view(-1, _DRAW_CHUNK)
    chunk_totals_C = chunks_CW.sum(-1, dtype=torch.float64).cumsum(-1)
    target = chunk_totals_C[-1] * number
    chunk = int(torch.searchsorted(chunk_totals_C, target, right=True).clamp_(max=len(chunk_totals_C) - 1))
    before = chunk_totals_C[chunk - 1] if chunk else chunk_totals_C.new_zeros(())
    totals_W = chunks_CW[chunk].cumsum(-1, dtype=torch.float64)
    index = chunk * _DRAW_CHUNK + int(torch.searchsorted(totals_W, target - before, right=True))
    # By a rounding a chunk's own total may fall short of its share of the sum, and the search run past it.
    is_drawable = index < len(weights_V) and weights_V[index] > 0
    return index if is_drawable else int(weights_V.argmax())


def nucleus_threshold(probs_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the least probability in the smallest set of likeliest tokens whose mass reaches top_p."""
    top = probs_V.topk(min(_NUCLEUS_GUESS, len(probs_V))).values
    totals = top.cumsum(-1, dtype=torch.float64)
    if totals[-1] < top_p and len(top) < len(probs_V):
        top = probs_V.sort(descending=True).values
        totals = top.cumsum(-1, dtype=torch.float64)
    last = int(torch.searchsorted(totals, totals.new_tensor(top_p)).clamp_(max=len(top) - 1))
    return top[last]


def apply_penalties(logits_V: torch.Tensor, sequence: ScheduledSequence, params: SamplingParams) -> None:
    """Change the logits of tokens already seen, in place: repetition over all, the others over the output."""
    known = torch.tensor(sequence.known_token_ids[: sequence.num_known_tokens]).to(logits_V.device)
    if params.repetition_penalty != 1.0:
        seen = torch.unique(known)
        values = logits_V[seen]
        logits_V[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    output, counts = torch.unique(known[sequence.num_prompt_tokens :], return_counts=True)
    if len(output):
        logits_V[output] -= params.presence_penalty + params.frequency_penalty * counts


def read_logprobs(logprobs_V: torch.Tensor, token_id: int, params: SamplingParams) -> TokenLogprobs:
    if params.scored_token_ids:
        ids = torch.tensor(params.scored_token_ids, device=logprobs_V.device)
        values = logprobs_V[ids]
    else:
        values, ids = logprobs_V.topk(params.num_logprobs or 0)
    return TokenLogprobs(
        logprob=float(logprobs_V[token_id]), top=tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
