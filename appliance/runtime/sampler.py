"""Chooses tokens, each sequence by its own rules and its own random numbers. Knows no queue.

Rows are treated one by one, and by rules that depend on the row alone, so that what a sequence gets never
depends on its neighbours. The order of cuts is temperature, top-k, top-p, min-p; a token is drawn in
vocabulary order, so that a difference in the last bit of a logit moves a border between two tokens by that
much and no further.
"""

import math
import random
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from hashlib import blake2b

import numpy as np
import torch

from appliance.engine.batch import (
    FailureKind,
    ScheduledSequence,
    SequenceOutput,
    StepFailure,
    TokenLogprobs,
)
from appliance.engine.sequence import SamplingParams, SequenceId
from appliance.model.decoder import Candidates, ForwardOutputs
from appliance.runtime.masks import Mask

# A backend may give this many best tokens in place of all logits.
MAX_CANDIDATES = 1024
# Of the best tokens, with a grammar: hardly ever are so many blocked.
_LEAST_CANDIDATES = 32
# Below this only the likeliest token is ever drawn, and dividing by it soon overflows float32.
LEAST_TEMPERATURE = 1e-6
# A nucleus this wide is found without sorting the whole vocabulary.
_NUCLEUS_GUESS = 1024
# Cumulated at once; the sums of chunks come first, so that a draw reads the vocabulary twice, in order.
_DRAW_CHUNK = 256
NOT_FINITE = "the model produced values that are not finite; its file may be damaged, or --precision too low"


def has_own_rules(sequence: ScheduledSequence) -> bool:
    """Whether this sequence's logits are changed first, or asked for besides the token."""
    params = sequence.sampling
    assert params is not None
    return _needs_whole_row(sequence, params) or sequence.constraint is not None


def _needs_whole_row(sequence: ScheduledSequence, params: SamplingParams) -> bool:
    changes_logits = params.has_penalties or bool(params.logit_bias) or _holds_back_stops(sequence, params)
    return changes_logits or params.num_logprobs is not None


def needs_logits(sequence: ScheduledSequence) -> bool:
    """Whether choosing this sequence's token takes more than its best tokens."""
    params = sequence.sampling
    assert params is not None
    if has_own_rules(sequence):
        return True
    return not params.is_greedy and not 0 < params.top_k <= MAX_CANDIDATES


def num_candidates(sequence: ScheduledSequence) -> int:
    """How many best tokens the choice reads; 1 also tells whether the logits are finite.

    A grammar blocks some of the best: twice as many nearly always hold as many that are allowed.
    """
    params = sequence.sampling
    assert params is not None
    if sequence.constraint is not None and num_wanted(params):
        return max(2 * num_wanted(params), _LEAST_CANDIDATES)
    return 1 if params.is_greedy or needs_logits(sequence) else params.top_k


def num_wanted(params: SamplingParams) -> int:
    """How many of the best allowed tokens a choice is among; 0 where that may be any number."""
    if params.is_greedy:
        return 1
    return params.top_k if params.top_k <= MAX_CANDIDATES // 2 else 0


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
    is_finite = _finite_rows(outputs)
    return [
        _sample_row(outputs, row, sequence, (masks or {}).get(sequence.sequence_id))
        if is_finite[row]
        else failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
        for row, sequence in enumerate(sequences)
    ]


def _finite_rows(outputs: ForwardOutputs) -> list[bool]:
    if outputs.candidates is not None:
        rows: list[bool] = (outputs.candidates.ids[:, 0] >= 0).tolist()
        return rows
    assert outputs.logits is not None
    # A sum is finite only if each term is, but for overflow, which no softmax survives either.
    finite: list[bool] = torch.isfinite(outputs.logits.sum(-1)).tolist()
    return finite


def failed(sequence: ScheduledSequence, kind: FailureKind, message: str) -> SequenceOutput:
    failure = StepFailure(kind=kind, message=message)
    return SequenceOutput(sequence_id=sequence.sequence_id, failure=failure)


def _sample_row(
    outputs: ForwardOutputs, row: int, sequence: ScheduledSequence, mask: Mask | None
) -> SequenceOutput:
    params = sequence.sampling
    assert params is not None
    logits_V = None if outputs.logits is None else outputs.logits[row]
    if needs_logits(sequence):
        assert logits_V is not None
        if mask is not None and mask.error is not None:
            return failed(sequence, FailureKind.CONSTRAINT, mask.error)
        token_id = None
        if mask is not None and not _needs_whole_row(sequence, params):
            token_id = _choose_allowed(outputs, row, sequence, mask)
        if token_id is None:
            return _sample_logits(logits_V, sequence, params, mask)
        return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,))
    if outputs.candidates is not None:
        ids_K, values_K = outputs.candidates.ids[row], outputs.candidates.logits[row]
    else:
        assert logits_V is not None
        values_K, ids_K = logits_V.topk(min(num_candidates(sequence), len(logits_V)))
    if params.is_greedy:
        token_id = int(ids_K[0])
    else:
        number = uniform(params.seed, sequence.num_output_tokens)
        token_id = choose_among(ids_K[: params.top_k], values_K[: params.top_k], params, number)
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,))


def _choose_allowed(outputs: ForwardOutputs, row: int, sequence: ScheduledSequence, mask: Mask) -> int | None:
    """Choose among the few allowed, or the allowed ones of the best; None where these are not enough.

    The same choice that the whole row would give: what is left out has no chance there.
    """
    params, best = sequence.sampling, outputs.candidates
    assert params is not None
    if best is not None and num_wanted(params):
        among = _best_allowed(best, row, mask, num_wanted(params))
    else:
        among = None
    if among is None and mask.few is not None:
        among = _few_allowed(outputs, row, mask.few)
    if among is None:
        return None
    ids_K, values_K = among
    if params.is_greedy:
        return int(ids_K[int(values_K.argmax())])
    if 0 < params.top_k < len(ids_K):
        values_K, places = values_K.topk(params.top_k)
        ids_K = ids_K[places]
    return choose_among(ids_K, values_K, params, uniform(params.seed, sequence.num_output_tokens))


def _best_allowed(
    best: Candidates, row: int, mask: Mask, num_needed: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The best that are allowed; by numpy, whose calls cost a fifth of torch's on so few numbers."""
    ids, allowed = best.ids[row].numpy(), mask.allowed.numpy()
    # A grammar knows the tokenizer's tokens; logits may have rows beyond.
    is_allowed = (ids < len(allowed)) & (allowed[np.minimum(ids, len(allowed) - 1)] > 0)
    places = np.flatnonzero(is_allowed)[:num_needed]
    if len(places) < num_needed:
        return None
    return torch.from_numpy(ids[places]), torch.from_numpy(best.logits[row].numpy()[places])


def _few_allowed(
    outputs: ForwardOutputs, row: int, few: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    assert outputs.logits is not None
    logits_V = outputs.logits[row]
    ids_K = few[few < len(logits_V)].to(logits_V.device)
    return (ids_K, logits_V[ids_K]) if len(ids_K) else None


def _sample_logits(
    logits_V: torch.Tensor, sequence: ScheduledSequence, params: SamplingParams, mask: Mask | None
) -> SequenceOutput:
    raw_logprobs_V = None if params.num_logprobs is None else logits_V.log_softmax(-1)
    if params.has_penalties:
        apply_penalties(logits_V, sequence, params)
    for token_id, bias in params.logit_bias:
        logits_V[token_id] += bias
    if mask is not None:
        _block(logits_V, mask)
    if _holds_back_stops(sequence, params):
        _hold_back(logits_V, params.stop_token_ids)
    if params.is_greedy:
        token_id = _likeliest(logits_V)
    else:
        token_id = choose(logits_V, params, uniform(params.seed, sequence.num_output_tokens))
    logprobs = None if raw_logprobs_V is None else (_logprobs(raw_logprobs_V, token_id, params),)
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,), logprobs=logprobs)


def _block(logits_V: torch.Tensor, mask: Mask) -> None:
    """A grammar knows the tokenizer's tokens; a mask is whole words, and logits may have rows beyond both."""
    num_known = min(len(logits_V), len(mask.allowed))
    allowed = mask.allowed[:num_known].to(logits_V.device).float()
    # 1 - 1/1 is 0, and 1 - 1/0 is -inf: a third of the time that filling by a mask takes.
    logits_V[:num_known] += allowed.reciprocal_().neg_().add_(1.0)
    logits_V[num_known:] = -math.inf


def _likeliest(logits_V: torch.Tensor) -> int:
    """On a CPU numpy finds it in a tenth of torch's time: 6 us of 49,152 against 56."""
    return int(logits_V.numpy().argmax() if logits_V.device.type == "cpu" else logits_V.argmax())


def _hold_back(logits_V: torch.Tensor, stop_token_ids: frozenset[int]) -> None:
    """Where a grammar leaves nothing else, its end comes sooner than `min_tokens`."""
    known = [token_id for token_id in stop_token_ids if token_id < len(logits_V)]
    stops = torch.tensor(known, dtype=torch.int64, device=logits_V.device)
    kept = logits_V[stops]
    logits_V[stops] = -math.inf
    if logits_V.max() == -math.inf:
        logits_V[stops] = kept


def _holds_back_stops(sequence: ScheduledSequence, params: SamplingParams) -> bool:
    return sequence.num_output_tokens < params.min_tokens and bool(params.stop_token_ids)


def uniform(seed: int | None, index: int) -> float:
    """Return a number in [0, 1): a function of (seed, index) alone, or a fresh one without a seed."""
    if seed is None:
        return random.random()  # noqa: S311  # chooses words, guards nothing
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


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


def _logprobs(logprobs_V: torch.Tensor, token_id: int, params: SamplingParams) -> TokenLogprobs:
    if params.scored_token_ids:
        ids = torch.tensor(params.scored_token_ids, device=logprobs_V.device)
        values = logprobs_V[ids]
    else:
        values, ids = logprobs_V.topk(params.num_logprobs or 0)
    return TokenLogprobs(
        logprob=float(logprobs_V[token_id]), top=tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
