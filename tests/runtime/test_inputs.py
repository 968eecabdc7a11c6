"""A batch of plain integers becomes flat tensors in the batch's order."""

import pytest
import torch

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.runtime.inputs import build_inputs


def scheduled(
    new: tuple[int, ...], *, computed: int = 0, table: tuple[int, ...], is_sampled: bool = True
) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=SequenceId(1),
        new_token_ids=new,
        num_computed_tokens=computed,
        block_table=tuple(BlockId(block) for block in table),
        known_token_ids=[0] * computed + list(new),
        num_prompt_tokens=computed + len(new),
        sampling=SamplingParams() if is_sampled else None,
    )


def test_a_mixed_batch_is_flattened_in_order() -> None:
    batch = Batch(
        sequences=(
            scheduled((11, 12, 13), table=(5,)),
            scheduled((21,), computed=8, table=(2, 9, 4)),
            scheduled((31, 32), computed=3, table=(7, 1), is_sampled=False),
            scheduled((41,), table=(3,)),
        )
    )
    inputs = build_inputs(batch, block_size=4)
    assert inputs.token_ids.tolist() == [11, 12, 13, 21, 31, 32, 41]
    assert inputs.positions.tolist() == [0, 1, 2, 8, 3, 4, 0]
    assert inputs.slots.tolist() == [20, 21, 22, 16, 31, 4, 12]
    assert inputs.output_rows.tolist() == [2, 3, 6]
    ragged = inputs.ragged
    assert ragged.num_sequences == 4
    assert ragged.host_query_starts == (0, 3, 4, 6, 7)
    assert ragged.host_context_lens == (3, 9, 5, 1)
    assert ragged.query_starts.tolist() == [0, 3, 4, 6, 7]
    assert ragged.context_lens.tolist() == [3, 9, 5, 1]
    assert ragged.block_tables.tolist() == [[5, 0, 0], [2, 9, 4], [7, 1, 0], [3, 0, 0]]


def test_types_are_those_of_the_contract() -> None:
    inputs = build_inputs(Batch(sequences=(scheduled((1,), table=(0,)),)), block_size=16)
    for tensor in (inputs.token_ids, inputs.positions, inputs.slots, inputs.output_rows):
        assert tensor.dtype == torch.int64
    for tensor in (inputs.ragged.query_starts, inputs.ragged.context_lens, inputs.ragged.block_tables):
        assert tensor.dtype == torch.int32


@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_slots_follow_the_table_across_blocks(block_size: int) -> None:
    table = (6, 0, 3, 5, 1, 2, 4, 8, 7, 9)
    new = tuple(range(100, 100 + 3 * block_size))
    batch = Batch(sequences=(scheduled(new, computed=2 * block_size, table=table),))
    slots = build_inputs(batch, block_size=block_size).slots.tolist()
    assert slots == [block * block_size + place for block in table[2:5] for place in range(block_size)]


def test_a_step_without_samples_has_no_output_rows() -> None:
    batch = Batch(sequences=(scheduled((1, 2), table=(0,), is_sampled=False),))
    assert build_inputs(batch, block_size=16).output_rows.shape == (0,)
