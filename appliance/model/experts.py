"""A mixture of experts over an Ops table: a router's choice for each token, and the chosen ones' sum."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from appliance.model.config import ExpertConfig
from kernels.ops import AnyWeight

Linear = Callable[[torch.Tensor, AnyWeight], torch.Tensor]
Gated = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """One layer's experts, E of them. `gate_up` stacks gate and up rows."""

    router: AnyWeight  # (E, H)
    gate_up: tuple[AnyWeight, ...]  # E x (2 I, H)
    down: tuple[AnyWeight, ...]  # E x (H, I)


def mix_experts(
    x_TH: torch.Tensor, weights: ExpertWeights, config: ExpertConfig, linear: Linear, gated: Gated
) -> torch.Tensor:
    """Return (T, H) float32: the sum over each token's experts of probability x expert(x)."""
    chosen_Tk, share_Tk = choose_experts(linear(x_TH, weights.router), config)
    out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
    for expert in sorted(set(chosen_Tk.flatten().tolist())):
        rows_P, places_P = torch.where(chosen_Tk == expert)
        fed_PH = linear(gated(linear(x_TH[rows_P], weights.gate_up[expert])), weights.down[expert])
        out_TH.index_add_(0, rows_P, fed_PH.float() * share_Tk[rows_P, places_P, None])
    return out_TH


def choose_experts(logits_TE: torch.Tensor, config: ExpertConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's experts and their shares, (T, k) both: int64, float32."""
    shares_Tk, chosen_Tk = logits_TE.float().softmax(-1).topk(config.num_active, dim=-1)
    if config.normalizes_weights:
        shares_Tk = shares_Tk / shares_Tk.sum(-1, keepdim=True)
    return chosen_Tk, shares_Tk
