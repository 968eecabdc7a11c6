"""How far one model's next-token distributions are from another's, gathered chunk by chunk."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from appliance.quality import DomainQuality


@dataclass(slots=True, kw_only=True)
class Divergence:
    """Per-token losses (nats), divergences and agreements of the tokens seen so far."""

    losses: list[float] = field(default_factory=list)
    reference_losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    num_agreeing: int = 0

    def add(self, logits: torch.Tensor, reference: torch.Tensor, next_ids: torch.Tensor) -> None:
        """Take the logits (T, V) after each token, and the token that followed (T).

        The divergence is KL(reference || found) = sum p (log p - log q): what foretelling the reference's
        choices with the other model costs.
        """
        found = logits.double().log_softmax(-1)
        exact = reference.double().log_softmax(-1)
        rows = torch.arange(len(next_ids))
        self.losses += (-found[rows, next_ids]).tolist()
        self.reference_losses += (-exact[rows, next_ids]).tolist()
        self.divergences += (exact.exp() * (exact - found)).sum(-1).tolist()
        self.num_agreeing += int((found.argmax(-1) == exact.argmax(-1)).sum())

    def summary(self) -> DomainQuality:
        count = len(self.losses)
        return DomainQuality(
            num_tokens=count,
            perplexity=math.exp(sum(self.losses) / count),
            reference_perplexity=math.exp(sum(self.reference_losses) / count),
            mean_kl=sum(self.divergences) / count,
            p99_kl=sorted(self.divergences)[math.ceil(0.99 * count) - 1],
            top1_agreement=self.num_agreeing / count,
        )


def joined(parts: Iterable[Divergence]) -> Divergence:
    """Return all parts' tokens as one."""
    whole = Divergence()
    for part in parts:
        whole.losses += part.losses
        whole.reference_losses += part.reference_losses
        whole.divergences += part.divergences
        whole.num_agreeing += part.num_agreeing
    return whole
