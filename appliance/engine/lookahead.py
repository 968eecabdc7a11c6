"""Makes the step after one whose tokens nobody knows yet. Knows sequences and blocks; no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.engine.batch import UNKNOWN_TOKEN, ScheduledSequence
from appliance.engine.block_tables import BlockTables
from appliance.engine.sequence import Sequence, SequenceId
from appliance.engine.steps_in_flight import StepsInFlight

# Waiting sequences are looked at again after so long: classes and patience may have changed their order.
_SHORT_FOR_S = 0.25


@dataclass(frozen=True, slots=True)
class Shortage:
    """Somebody could not start for want of blocks: with these numbers nobody else can, for a while."""

    num_waiting: int
    num_available: int
    since_s: float

    def lasts(self, num_waiting: int, num_available: int, now_s: float) -> bool:
        is_as_short = num_waiting <= self.num_waiting and num_available <= self.num_available
        return is_as_short and now_s - self.since_s < _SHORT_FOR_S


def next_tokens(
    steps: StepsInFlight, running: Mapping[SequenceId, Sequence], tables: BlockTables
) -> tuple[ScheduledSequence, ...]:
    """One more token for each running sequence of the step in flight; empty where that cannot be.

    Sequences that end with that step for certain are left out. Blocks are taken as the tokens will need them.
    """
    found: list[ScheduledSequence] = []
    num_met = 0
    for scheduled in steps.last.sequences:
        sequence = running.get(scheduled.sequence_id)
        if sequence is None:
            continue  # ended with the step before: its row of this one is nobody's
        num_met += 1
        if scheduled.sampling is None or scheduled.constraint is not None:
            return ()
        if steps.is_ending(scheduled.sequence_id) or _is_last(scheduled, sequence):
            continue
        if not tables.grow_ahead(sequence, scheduled.num_known_tokens):
            return ()
        found.append(_one_more(scheduled, sequence))
    return tuple(found) if num_met == len(running) else ()


def _is_last(scheduled: ScheduledSequence, sequence: Sequence) -> bool:
    return scheduled.num_output_tokens + 1 >= sequence.max_output_tokens


def _one_more(scheduled: ScheduledSequence, sequence: Sequence) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=scheduled.sequence_id,
        new_token_ids=(UNKNOWN_TOKEN,),
        num_computed_tokens=scheduled.num_known_tokens,
        block_table=sequence.block_table,
        known_token_ids=scheduled.known_token_ids,
        num_prompt_tokens=scheduled.num_prompt_tokens,
        sampling=scheduled.sampling,
    )
