"""Keeps the blocks of preempted sequences in host memory, where that is cheaper than computing them again.

Knows places, sizes and times; knows no tensors and no queue. What is to be copied goes with the next step,
before anything is computed: first what is saved, then what is restored.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from appliance.engine.batch import HostCopy
from appliance.engine.sequence import BlockId, Sequence, SequenceId


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What a backend offers beside its pool: so many blocks' places, and how fast copies there are."""

    num_places: int
    block_s: float  # to copy one block there or back, in every layer


@dataclass(frozen=True, slots=True)
class _Saved:
    places: list[int]
    num_tokens: int  # that were computed


class SwapSpace:
    """Hands out the places of a bounded host memory. Without any, everything is computed again."""

    def __init__(self, host: HostMemory | None = None) -> None:
        self._block_s = host.block_s if host else 0.0
        self._free = list(range(host.num_places if host else 0))
        self._saved: dict[SequenceId, _Saved] = {}
        self._saves: list[HostCopy] = []
        self._restores: list[HostCopy] = []
        self._moved: set[SequenceId] = set()  # by the copies of the step in flight
        self.num_places = len(self._free)
        self.num_saved_blocks = 0  # since the start

    @property
    def num_used_places(self) -> int:
        return self.num_places - len(self._free)

    def check_invariants(self, waiting: Iterable[SequenceId]) -> None:
        """Assert that every place is free or held once, by one of the waiting."""
        held = [place for saved in self._saved.values() for place in saved.places]
        assert sorted([*held, *self._free]) == list(range(self.num_places)), "a place is lost or held twice"
        assert self._saved.keys() <= set(waiting), "places are kept for one that does not wait"

    def num_saved_tokens(self, sequence: Sequence) -> int:
        saved = self._saved.get(sequence.sequence_id)
        return 0 if saved is None else saved.num_tokens

    def save(self, sequence: Sequence, num_blocks: int, recompute_s: float | None) -> None:
        """Keep the first blocks of a sequence that is preempted, if the way there and back takes less time.

        `recompute_s` is what computing them again is expected to take; None is unknown, and then nothing is
        kept, nor where the places do not suffice.
        """
        if recompute_s is None or 2 * num_blocks * self._block_s >= recompute_s:
            return
        if not 0 < num_blocks <= len(self._free):
            return
        places = [self._free.pop() for _ in range(num_blocks)]
        self._saved[sequence.sequence_id] = _Saved(places, sequence.num_computed_tokens)
        self._saves += _copies(sequence.block_table, places)
        self._moved.add(sequence.sequence_id)
        self.num_saved_blocks += num_blocks

    def restore(self, sequence: Sequence, first: int) -> int:
        """Have its blocks from `first` on filled again. Returns how many tokens they then hold computed."""
        saved = self._saved.pop(sequence.sequence_id)
        self._restores += _copies(sequence.block_table[first:], saved.places[first:])
        self._moved.add(sequence.sequence_id)
        self._free += saved.places
        return saved.num_tokens

    def forget(self, sequence: Sequence) -> None:
        """Give the places of a sequence back, if it has any."""
        saved = self._saved.pop(sequence.sequence_id, None)
        if saved is not None:
            self._free += saved.places

    def take_copies(self) -> tuple[tuple[HostCopy, ...], tuple[HostCopy, ...]]:
        """What the step that is made now is to save, and to restore after that."""
        saves, restores = tuple(self._saves), tuple(self._restores)
        self._saves, self._restores = [], []
        return saves, restores

    def settle(self) -> set[SequenceId]:
        """The step is done: return whose blocks its copies moved."""
        moved, self._moved = self._moved, set()
        return moved


def _copies(blocks: SequenceOf[BlockId], places: SequenceOf[int]) -> list[HostCopy]:
    return [HostCopy(block=block, place=place) for block, place in zip(blocks, places, strict=False)]
