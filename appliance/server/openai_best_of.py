"""Keeps the best of several choices of each prompt. Knows log-probabilities."""

from dataclasses import dataclass, replace

from appliance.server.text_events import FinishedText


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """Of `num_made` choices of a prompt the `num_kept` likeliest per token are the answer."""

    num_made: int
    num_kept: int

    @property
    def is_choosing(self) -> bool:
        return self.num_made > self.num_kept

    def chosen(self, choices: list[FinishedText]) -> list[FinishedText]:
        """Return the answer, best first within each prompt, numbered anew."""
        kept: list[FinishedText] = []
        for first in range(0, len(choices), self.num_made):
            of_prompt = sorted(choices[first : first + self.num_made], key=_mean_logprob, reverse=True)
            kept += of_prompt[: self.num_kept]
        return [replace(c, end=replace(c.end, index=index)) for index, c in enumerate(kept)]


def _mean_logprob(choice: FinishedText) -> float:
    if not choice.tokens:
        return float("-inf")
    return sum(token.logprobs.logprob for token in choice.tokens) / len(choice.tokens)
