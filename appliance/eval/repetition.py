"""Whether a text has run into a loop. Knows token ids only."""

from collections.abc import Sequence

# A list of three like items is style; four turns of the same words, or a line of one token, is a loop.
_TURNS = 4
_FEWEST_TOKENS = 12


def is_looping(token_ids: Sequence[int]) -> bool:
    """Whether the end is one piece of any length, repeated _TURNS times and for _FEWEST_TOKENS at least."""
    ids = list(token_ids)
    for period in range(1, len(ids) // _TURNS + 1):
        length = max(_TURNS * period, _FEWEST_TOKENS)
        tail = ids[-length:]
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False
