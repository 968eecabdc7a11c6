"""Prompts that no server has seen: random token ids, or random words where a server takes only text."""

import random
from dataclasses import dataclass

# Past the single bytes and control tokens that vocabularies begin with, below the end of the small ones.
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 20_000
_WORDS = (
    *("river", "stone", "lamp", "garden", "window", "paper", "silver", "winter", "morning", "bread"),
    *("yellow", "market", "mountain", "letter", "ocean", "kitchen", "bridge", "forest", "music", "summer"),
    *("table", "engine", "station", "doctor", "village", "candle", "story", "pocket", "thunder", "island"),
    *("mirror", "butter", "harvest", "travel", "school", "number", "signal", "weather", "copper", "valley"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaker:
    """Makes prompts of about `num_tokens` tokens, exactly so many where the server takes token ids."""

    num_tokens: int
    tokens_per_word: float | None = None  # None: send token ids

    def make(self, source: random.Random) -> list[int] | str:
        if self.tokens_per_word is None:
            return [source.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(self.num_tokens)]
        num_words = max(1, round(self.num_tokens / self.tokens_per_word))
        return " ".join(source.choices(_WORDS, k=num_words))
