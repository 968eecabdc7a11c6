"""Cuts one word into pieces of a vocabulary: by merging pairs, or along the likeliest path. Knows no ids.

The algorithms are sentencepiece's: Sennrich et al. 2016 (BPE), Kudo 2018 (unigram).
"""

import heapq
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

NEVER = float("inf")
# Up to here scanning all pairs after each merge is quicker than keeping a heap.
_SHORT_WORD = 48


# (left, right) -> what is lowest is joined first; NEVER where the two are not joined
Priority = Callable[[str, str], float]


class Segmenter(Protocol):
    def cut(self, word: str) -> list[str]:
        """Return the pieces of a word, which joined give the word; unknown characters stay single."""
        ...


class MergingSegmenter:
    """Joins the two neighbours of the lowest priority first, the leftmost of equal ones."""

    def __init__(self, priority: Priority) -> None:
        self._priority = priority

    def cut(self, word: str) -> list[str]:
        if len(word) > _SHORT_WORD:
            return self._cut_long(word)
        pieces, priority = list(word), self._priority
        waiting = [priority(left, right) for left, right in pairwise(pieces)]
        while waiting and (best := min(waiting)) != NEVER:
            at = waiting.index(best)
            joined = pieces[at] + pieces.pop(at + 1)
            pieces[at] = joined
            del waiting[at]
            if at:
                waiting[at - 1] = priority(pieces[at - 1], joined)
            if at < len(waiting):
                waiting[at] = priority(joined, pieces[at + 1])
        return pieces

    def _cut_long(self, word: str) -> list[str]:
        """As `cut`, in n log n: neighbours are linked, and an entry whose pieces have changed is skipped."""
        pieces: list[str] = list(word)  # "" once it is part of the one before
        following = list(range(1, len(word) + 1))
        preceding = list(range(-1, len(word) - 1))
        heap: list[tuple[float, int, int]] = []  # priority, left piece, length of both

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(pieces):
                priority = self._priority(pieces[left], pieces[right])
                if priority != NEVER:
                    heapq.heappush(heap, (priority, left, len(pieces[left]) + len(pieces[right])))

        for left in range(len(word) - 1):
            offer(left, left + 1)
        while heap:
            _, left, length = heapq.heappop(heap)
            right = following[left]
            if not pieces[left] or right == len(pieces) or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            following[left] = following[right]
            if following[left] < len(pieces):
                preceding[following[left]] = left
            offer(preceding[left], left)
            offer(left, following[left])
        return [piece for piece in pieces if piece]


def by_piece(priorities: Mapping[str, float]) -> Priority:
    """Return priorities that only the piece decides which the two make."""
    get = priorities.get
    return lambda left, right: get(left + right, NEVER)


class LikeliestSegmenter:
    """Takes the path of the highest sum of scores; an unknown character costs more than any piece."""

    _UNKNOWN_PENALTY = 10.0

    def __init__(self, scores: Mapping[str, float], added: Mapping[str, float]) -> None:
        self._scores = {**scores, **added}
        self._longest = max(map(len, self._scores), default=1)
        self._unknown_score = min(scores.values(), default=0.0) - self._UNKNOWN_PENALTY

    def cut(self, word: str) -> list[str]:
        get, longest = self._scores.get, self._longest
        best = [0.0] + [-NEVER] * len(word)  # the best sum up to each position
        starts = [0] * (len(word) + 1)  # where the last piece of that sum begins
        for begin in range(len(word)):
            sum_here = best[begin]
            if get(word[begin]) is None and sum_here + self._unknown_score > best[begin + 1]:
                best[begin + 1], starts[begin + 1] = sum_here + self._unknown_score, begin
            for end in range(begin + 1, min(begin + longest, len(word)) + 1):
                score = get(word[begin:end])
                if score is not None and sum_here + score > best[end]:
                    best[end], starts[end] = sum_here + score, begin
        pieces: list[str] = []
        end = len(word)
        while end:
            pieces.append(word[starts[end] : end])
            end = starts[end]
        return pieces[::-1]
