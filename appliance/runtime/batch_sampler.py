"""Chooses the tokens of all rows at once, where the logits are. Knows plain rules only; reads nothing back.

The rules and their order are those of sampler.py: temperature, top-k, top-p, min-p, a draw in vocabulary
order. A row's own number decides, and no row looks at another, so neighbours change nothing.
"""

from collections.abc import Sequence as SequenceOf

import torch

from appliance.runtime.on_device import to_device
from appliance.runtime.row_rules import RowRules

# What a row gets whose logits are not finite.
NOT_FINITE_ID = -1


def choose_rows(logits_RV: torch.Tensor, rules: SequenceOf[RowRules]) -> torch.Tensor:
    """Return int64 (R) on the logits' device: a token for each row, or NOT_FINITE_ID."""
    likeliest_R = logits_RV.argmax(-1)
    chosen_R = likeliest_R
    if not all(row.is_greedy for row in rules):
        drawn_R = _draw(logits_RV, rules, likeliest_R)
        is_greedy_R = to_device([row.is_greedy for row in rules], torch.bool, logits_RV.device)
        chosen_R = torch.where(is_greedy_R, likeliest_R, drawn_R)
    # A sum is finite only if each term is, but for overflow, which no softmax survives either.
    return torch.where(torch.isfinite(logits_RV.sum(-1)), chosen_R, NOT_FINITE_ID)


def _draw(logits_RV: torch.Tensor, rules: SequenceOf[RowRules], likeliest_R: torch.Tensor) -> torch.Tensor:
    device, vocab_size = logits_RV.device, logits_RV.shape[1]
    temperature, top_p, min_p, number = to_device(
        [[r.temperature, r.top_p, r.min_p, r.number] for r in rules], torch.float64, device
    ).T[:, :, None]
    scaled_RV = logits_RV / temperature.float()
    if most := max(min(r.top_k, vocab_size) for r in rules):
        ranks = to_device([min(r.top_k or vocab_size, most) - 1 for r in rules], torch.int64, device)
        cuts = to_device([r.top_k > 0 for r in rules], torch.bool, device)
        least_R1 = scaled_RV.topk(most).values.gather(1, ranks[:, None])
        scaled_RV.masked_fill_(cuts[:, None] & (scaled_RV < least_R1), float("-inf"))
    probs_RV = scaled_RV.softmax(-1)
    if any(r.top_p < 1.0 for r in rules):
        threshold_R1 = _nucleus_threshold(probs_RV, top_p)
        probs_RV.masked_fill_((top_p < 1.0) & (probs_RV < threshold_R1), 0.0)
    if any(r.min_p > 0.0 for r in rules):
        probs_RV.masked_fill_(probs_RV < probs_RV.amax(-1, keepdim=True) * min_p.float(), 0.0)
    totals_RV = probs_RV.cumsum(-1, dtype=torch.float64)
    drawn_R1 = torch.searchsorted(totals_RV, totals_RV[:, -1:] * number, right=True)
    drawn_R1.clamp_(max=vocab_size - 1)
    # By a rounding the search may run past the last token that can be drawn.
    return torch.where(probs_RV.gather(1, drawn_R1)[:, 0] > 0, drawn_R1[:, 0], likeliest_R)


def _nucleus_threshold(probs_RV: torch.Tensor, top_p_R1: torch.Tensor) -> torch.Tensor:
    """The least probability in each row's smallest set of likeliest tokens whose mass reaches top_p."""
    sorted_RV = probs_RV.sort(descending=True).values
    num_short_R1 = (sorted_RV.cumsum(-1, dtype=torch.float64) < top_p_R1).sum(-1, keepdim=True)
    return sorted_RV.gather(1, num_short_R1.clamp_(max=probs_RV.shape[1] - 1))
