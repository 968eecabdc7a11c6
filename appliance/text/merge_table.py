"""The merges of a BPE model by the piece that each makes: hundreds of thousands of pairs without a text each.

A dictionary of pairs would take longer to build than the rest of a tokenizer. Knows no words and no file.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from appliance.text.segmenters import NEVER, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTable:
    """The merges that make token i are those from `starts[i]` to `starts[i + 1]`, the first merged first."""

    starts: "array[int]"  # a number more than there are tokens
    lengths: "array[int]"  # characters of the left piece
    ranks: "array[int]"

    def is_whole(self, num_tokens: int) -> bool:
        """Whether no lookup of so many tokens can leave the table."""
        num_merges = len(self.ranks)
        fits = len(self.starts) == num_tokens + 1 and len(self.lengths) == num_merges
        return fits and max(self.starts) == num_merges


def merge_table(pairs: Iterable[tuple[str, str]], ids: Mapping[str, int], num_tokens: int) -> MergeTable:
    """Sort the pairs, given by rank, by the token that they make.

    Raises KeyError with a text that is no token.
    """
    made, left_lengths, counts = [], [], [0] * (num_tokens + 1)
    for left, right in pairs:
        token_id = ids[left + right]
        made.append(token_id)
        left_lengths.append(len(left))
        counts[token_id + 1] += 1
    # Stable, so that a token's merges stay in the order of their ranks.
    ranks = sorted(range(len(made)), key=made.__getitem__)
    return MergeTable(
        starts=array("I", accumulate(counts)),
        lengths=array("I", map(left_lengths.__getitem__, ranks)),
        ranks=array("I", ranks),
    )


def ranked(table: MergeTable, ids: Mapping[str, int], other_ids: Mapping[str, int]) -> Priority:
    """Return the ranks of pairs; the ids, first those of ordinary pieces, are those it was made with."""
    starts, lengths, ranks = table.starts, table.lengths, table.ranks
    find, find_other = ids.get, other_ids.get

    def rank(left: str, right: str) -> float:
        made = left + right
        token_id = find(made)
        if token_id is None:
            token_id = find_other(made)
        if token_id is None:
            return NEVER
        length = len(left)
        for at in range(starts[token_id], starts[token_id + 1]):
            if lengths[at] == length:
                return ranks[at]
        return NEVER

    return rank
