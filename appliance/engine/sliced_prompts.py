"""Prompt chunks that several steps compute together, some layers each. Knows no blocks and no times.

Beside streams a step has room for a little of a prompt. Few of its tokens would cost nearly as much as many:
the step reads all weights and the prompt's whole context for them. A few layers of many tokens read little.
"""

import math

from appliance.engine.batch import PromptSlice, ScheduledSequence
from appliance.engine.sequence import SequenceId

# Predicted times are not exact: what nearly fits is taken to fit.
_NEARLY = 0.9


class SlicedPrompts:
    """At most one set of chunks, which ends before the next begins; none on a device of `num_layers` 0."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._next_layer = 0
        self._chunks: tuple[ScheduledSequence, ...] = ()

    @property
    def chunks(self) -> tuple[ScheduledSequence, ...]:
        """Those under way."""
        return self._chunks

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return any(chunk.sequence_id == sequence_id for chunk in self._chunks)

    def next_slice(self, chunks: tuple[ScheduledSequence, ...], share: float) -> PromptSlice | None:
        """The layers of chunks, new or under way, for which there is room, where that is `share` of them all.

        At least one; with the last ones the chunks are done. None where new ones fit as they are. Steps in
        which as many layers fit get the same number of them, but for one.
        """
        if not self._chunks:
            if share >= _NEARLY or self._num_layers < 2:
                return None
            self._chunks, self._next_layer = chunks, 0
        first = self._next_layer
        left = self._num_layers - first
        most = max(1, int(min(1.0, share) * self._num_layers / _NEARLY))
        num_steps = math.ceil(left / most)
        self._next_layer = end = first + math.ceil(left / num_steps)
        piece = PromptSlice(
            sequences=self._chunks, first_layer=first, end_layer=end, num_layers=self._num_layers
        )
        if piece.is_last:
            self._chunks = ()
        return piece

    def drop_with(self, sequence_id: SequenceId) -> None:
        """Give the chunks up if this sequence has one: what is left of them is planned anew."""
        if sequence_id in self:
            self._chunks = ()
