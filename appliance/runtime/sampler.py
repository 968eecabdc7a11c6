"""Chooses tokens from logits, each sequence by its own rules and its own random numbers. Knows no queue.

Rows are treated one by one, so that what a sequence gets never depends on its neighbours. The order of
cuts is temperature, top-k, top-p, min-p; candidates stay in vocabulary order, so that a difference in the
last bit of a logit moves a border between two tokens by that much and no further.
"""

import math
import random
from collections.abc import Sequence as SequenceOf
from hashlib import blake2b

import torch

from appliance.engine.batch import (
    FailureKind,
    ScheduledSequence,
    SequenceOutput,
    StepFailure,
    TokenLogprobs,
)
from appliance.engine.sequence import SamplingParams

# Below this only the likeliest token is ever drawn, and dividing by it soon overflows float32.
_LEAST_TEMPERATURE = 1e-6
# A nucleus this wide is found without sorting the whole vocabulary.
_NUCLEUS_GUESS = 1024
_NOT_FINITE = "the model produced values that are not finite; its file may be damaged, or --precision too low"


def sample(logits_RV: torch.Tensor, sequences: SequenceOf[ScheduledSequence]) -> list[SequenceOutput]:
    """Return one output per row. `logits_RV` is float32 and may be changed; each sequence has `sampling`."""
    finite_R = torch.isfinite(logits_RV).all(dim=-1).tolist()
    return [
        _sample_row(logits_RV[row], sequence) if finite_R[row] else _not_finite(sequence)
        for row, sequence in enumerate(sequences)
    ]


def _not_finite(sequence: ScheduledSequence) -> SequenceOutput:
    failure = StepFailure(kind=FailureKind.NOT_FINITE, message=_NOT_FINITE)
    return SequenceOutput(sequence_id=sequence.sequence_id, failure=failure)


def _sample_row(logits_V: torch.Tensor, sequence: ScheduledSequence) -> SequenceOutput:
    params = sequence.sampling
    assert params is not None
    raw_logprobs_V = None if params.num_logprobs is None else logits_V.log_softmax(-1)
    if params.has_penalties:
        apply_penalties(logits_V, sequence, params)
    if sequence.num_output_tokens < params.min_tokens and params.stop_token_ids:
        logits_V[[i for i in params.stop_token_ids if i < len(logits_V)]] = -math.inf
    if params.is_greedy:
        token_id = int(logits_V.argmax())
    else:
        token_id = choose(logits_V, params, uniform(params.seed, sequence.num_output_tokens))
    logprobs = None if raw_logprobs_V is None else (_logprobs(raw_logprobs_V, token_id, params),)
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,), logprobs=logprobs)


def uniform(seed: int | None, index: int) -> float:
    """Return a number in [0, 1): a function of (seed, index) alone, or a fresh one without a seed."""
    if seed is None:
        return random.random()  # noqa: S311  # chooses words, guards nothing
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def choose(logits_V: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Draw from the cut distribution: the token at which its running total passes `number`."""
    scaled_V = logits_V / max(params.temperature, _LEAST_TEMPERATURE)
    if 0 < params.top_k < len(scaled_V):
        _rule_out_below(scaled_V, scaled_V.topk(params.top_k).values[-1])
    probs_V = scaled_V.softmax(-1)
    if params.top_p < 1.0:
        _keep_above(probs_V, nucleus_threshold(probs_V, params.top_p))
    if params.min_p > 0.0:
        _keep_above(probs_V, probs_V.max() * params.min_p)
    totals_V = probs_V.cumsum(-1, dtype=torch.float64)
    return int(torch.searchsorted(totals_V, totals_V[-1] * number, right=True).clamp_(max=len(totals_V) - 1))


def _rule_out_below(scaled_V: torch.Tensor, threshold: torch.Tensor) -> None:
    """Rule out everything under the threshold, in place. Ties with it stay."""
    scaled_V.masked_fill_(scaled_V < threshold, -math.inf)


def nucleus_threshold(probs_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the least probability in the smallest set of likeliest tokens whose mass reaches top_p."""
    top = probs_V.topk(min(_NUCLEUS_GUESS, len(probs_V))).values
    totals = top.cumsum(-1, dtype=torch.float64)
    if totals[-1] < top_p and len(top) < len(probs_V):
        top = probs_V.sort(descending=True).values
        totals = top.cumsum(-1, dtype=torch.float64)
    last = int(torch.searchsorted(totals, totals.new_tensor(top_p)).clamp_(max=len(top) - 1))
    return top[last]


def _keep_above(probs_V: torch.Tensor, threshold: torch.Tensor) -> None:
    probs_V.masked_fill_(probs_V < threshold, 0.0)


def apply_penalties(logits_V: torch.Tensor, sequence: ScheduledSequence, params: SamplingParams) -> None:
    """Change the logits of tokens already seen, in place: repetition over all, the others over the output."""
    known = torch.tensor(sequence.known_token_ids)
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
    values, ids = logprobs_V.topk(params.num_logprobs or 0)
    return TokenLogprobs(
        logprob=float(logprobs_V[token_id]), top=tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
