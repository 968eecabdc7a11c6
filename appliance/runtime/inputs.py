"""From a Batch of plain integers to ForwardInputs in main memory."""

import torch

from appliance.engine.batch import Batch
from appliance.model.decoder import ForwardInputs
from appliance.runtime.flat_step import flatten
from kernels.ops import RaggedQueries


def build_inputs(batch: Batch, *, block_size: int) -> ForwardInputs:
    """Return a batch's step as tensors."""
    flat = flatten(batch.sequences, block_size)
    return ForwardInputs(
        token_ids=torch.tensor(flat.token_ids),
        positions=torch.tensor(flat.positions),
        slots=torch.tensor(flat.slots),
        ragged=RaggedQueries(
            query_starts=torch.tensor(flat.query_starts, dtype=torch.int32),
            context_lens=torch.tensor(flat.context_lens, dtype=torch.int32),
            block_tables=torch.tensor(flat.block_tables, dtype=torch.int32),
            host_query_starts=tuple(flat.query_starts),
            host_context_lens=tuple(flat.context_lens),
        ),
        output_rows=torch.tensor(flat.output_rows, dtype=torch.int64),
        num_candidates=flat.num_candidates,
        prompt_lens=tuple(flat.prompt_lens),
        num_read_rows=flat.num_read_rows,
        wants_logits=flat.wants_logits,
        wants_hidden=flat.wants_hidden,
    )
