"""Chooses tokens with a backend's own sampler, all rows in one call. Knows no queue and no grammar.

The rules are those of sampler.py, without torch. Only a row whose sequence asks for it has its logits
changed first.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import FailureKind, ScheduledSequence, SequenceOutput
from appliance.engine.sequence import SamplingParams, SequenceId
from appliance.runtime.masks import NOTHING_ALLOWED, Mask
from appliance.runtime.native_rows import log_softmax, read_logprobs
from appliance.runtime.native_step import NativeOutputs
from appliance.runtime.row_rules import RowRules
from appliance.runtime.sampling_needs import NOT_FINITE, failed, holds_back_stops, needs_logits


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """One row: what to choose among, and how."""

    logits: NDArray[np.float32]
    mask: NDArray[np.uint32] | None  # a bit for each allowed token, the first in the lowest
    rules: RowRules


@runtime_checkable
class ChoosingBackend(Protocol):
    """A backend that gives each row's best tokens and chooses among all logits itself."""

    def choose(self, choices: SequenceOf[TokenChoice]) -> list[int]:
        """Return a place in each row's logits, -1 where there is no finite number to choose by."""


def sample_natively(
    backend: ChoosingBackend,
    outputs: NativeOutputs,
    sequences: SequenceOf[ScheduledSequence],
    masks: Mapping[SequenceId, Mask] | None = None,
) -> list[SequenceOutput]:
    """Return one output per output row. Logits may be changed; each sequence has `sampling`."""
    best_RK, logits_RK = outputs.best.ids, outputs.best.values
    found: list[SequenceOutput | None] = [None] * len(sequences)
    rows = _Rows(outputs, masks or {})
    for row, sequence in enumerate(sequences):
        params = sequence.sampling
        assert params is not None
        if best_RK[row, 0] < 0:
            found[row] = failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
        elif needs_logits(sequence):
            found[row] = rows.add(row, sequence, params)
        elif params.is_greedy:
            found[row] = _output(sequence, int(best_RK[row, 0]))
        else:
            rows.add_best(row, sequence, best_RK[row, : params.top_k], logits_RK[row, : params.top_k])
    for row, output in rows.chosen_by(backend):
        found[row] = output
    return [output for output in found if output is not None]


@dataclass(frozen=True, slots=True)
class _Open:
    """A row that the backend is to choose for. Where it chooses among best tokens only, `ids` are these."""

    row: int
    sequence: ScheduledSequence
    ids: NDArray[np.int32] | None = None
    best: NDArray[np.int32] | None = None  # best first, before any change
    all_logprobs: NDArray[np.float32] | None = None  # (V), before any change


class _Rows:
    """Gathers the rows that are chosen in one call."""

    def __init__(self, outputs: NativeOutputs, masks: Mapping[SequenceId, Mask]) -> None:
        self._outputs = outputs
        self._masks = masks
        self._open: list[_Open] = []
        self._choices: list[TokenChoice] = []

    def add(self, row: int, sequence: ScheduledSequence, params: SamplingParams) -> SequenceOutput | None:
        """Choose from all logits; the failure where its grammar has none to offer."""
        mask = self._masks.get(sequence.sequence_id)
        if mask is not None and mask.error is not None:
            return failed(sequence, FailureKind.CONSTRAINT, mask.error)
        assert self._outputs.logits is not None
        logits_V = self._outputs.logits[row]
        logprobs_V = None if params.num_logprobs is None else log_softmax(logits_V)
        change_logits(logits_V, sequence, params)
        words = None if mask is None else mask.words
        if holds_back_stops(sequence, params):
            words = _without_stops(words, params.stop_token_ids, len(logits_V))
        best_K = self._outputs.best.ids[row]
        self._open.append(_Open(row, sequence, best=best_K, all_logprobs=logprobs_V))
        self._choices.append(TokenChoice(logits=logits_V, mask=words, rules=RowRules.of(sequence)))
        return None

    def add_best(
        self, row: int, sequence: ScheduledSequence, ids: NDArray[np.int32], logits: NDArray[np.float32]
    ) -> None:
        """Choose among the best tokens, in the vocabulary's order, which is that of a draw."""
        order = ids.argsort()
        self._open.append(_Open(row, sequence, ids=ids[order]))
        self._choices.append(TokenChoice(logits=logits[order], mask=None, rules=RowRules.of(sequence)))

    def chosen_by(self, backend: ChoosingBackend) -> list[tuple[int, SequenceOutput]]:
        places = backend.choose(self._choices) if self._choices else []
        return [(row.row, _found(row, place)) for row, place in zip(self._open, places, strict=True)]


def _found(row: _Open, place: int) -> SequenceOutput:
    if place < 0 and row.sequence.constraint is not None:
        return failed(row.sequence, FailureKind.CONSTRAINT, NOTHING_ALLOWED)
    if place < 0:
        return failed(row.sequence, FailureKind.NOT_FINITE, NOT_FINITE)
    token_id = place if row.ids is None else int(row.ids[place])
    params = row.sequence.sampling
    assert params is not None
    output = _output(row.sequence, token_id)
    if row.all_logprobs is None or row.best is None:
        return output
    return replace(output, logprobs=(read_logprobs(row.all_logprobs, row.best, token_id, params),))


def _output(sequence: ScheduledSequence, token_id: int) -> SequenceOutput:
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,))


def change_logits(logits_V: NDArray[np.float32], sequence: ScheduledSequence, params: SamplingParams) -> None:
    """Apply penalties and biases, in place."""
    if params.has_penalties:
        _apply_penalties(logits_V, sequence, params)
    for token_id, bias in params.logit_bias:
        logits_V[token_id] += np.float32(bias)


def _apply_penalties(
    logits_V: NDArray[np.float32], sequence: ScheduledSequence, params: SamplingParams
) -> None:
    """Change the logits of tokens already seen, in place: repetition over all, the others over the output."""
    known = np.array(sequence.known_token_ids[: sequence.num_known_tokens])
    if params.repetition_penalty != 1.0:
        seen, penalty = np.unique(known), np.float32(params.repetition_penalty)
        values = logits_V[seen]
        logits_V[seen] = np.where(values > 0, values / penalty, values * penalty)
    output, counts = np.unique(known[sequence.num_prompt_tokens :], return_counts=True)
    if len(output):
        frequency = np.float32(params.frequency_penalty) * counts.astype(np.float32)
        logits_V[output] -= np.float32(params.presence_penalty) + frequency


def _without_stops(
    words: NDArray[np.uint32] | None, stop_token_ids: frozenset[int], vocab_size: int
) -> NDArray[np.uint32] | None:
    """The mask less the stop tokens, unless nothing else is allowed: then the end comes sooner."""
    if words is None:
        words = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
        words[-1] >>= np.uint32(-vocab_size % 32)
    others = words.copy()
    for token_id in stop_token_ids:
        if token_id // 32 < len(others):
            others[token_id // 32] &= ~np.uint32(1 << token_id % 32)
    return others if others.any() else words
