"""From a Batch of plain integers to ForwardInputs on a device."""

from itertools import accumulate

import torch

from appliance.engine.batch import Batch
from appliance.model.decoder import ForwardInputs
from appliance.runtime.sampler import needs_logits, num_candidates
from kernels.ops import RaggedQueries


def build_inputs(batch: Batch, *, block_size: int, device: torch.device) -> ForwardInputs:
    """Flatten a batch's new tokens, in order; the output rows are the last tokens of sampled sequences.

    Behind these come the rows that are read inside prompts.
    """
    sequences = batch.sequences
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for s in sequences:
        token_ids.extend(s.new_token_ids)
        span = range(s.num_computed_tokens, s.num_computed_tokens + s.num_new_tokens)
        positions.extend(span)
        slots.extend(s.block_table[p // block_size] * block_size + p % block_size for p in span)
    starts = (0, *accumulate(s.num_new_tokens for s in sequences))
    context_lens = tuple(s.num_computed_tokens + s.num_new_tokens for s in sequences)
    output_rows = [starts[i + 1] - 1 for i, s in enumerate(sequences) if s.sampling is not None]
    sampled = [s for s in sequences if s.sampling is not None]
    for start, s in zip(starts, sequences, strict=False):
        output_rows.extend(start + position - s.num_computed_tokens for position in s.read_positions)
    reads = [s.prompt_read for s in sequences if s.prompt_read is not None and s.read_positions]
    return ForwardInputs(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        ragged=RaggedQueries(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            context_lens=torch.tensor(context_lens, dtype=torch.int32, device=device),
            block_tables=_pad([list(s.block_table) for s in sequences]).to(device),
            host_query_starts=starts,
            host_context_lens=context_lens,
        ),
        output_rows=torch.tensor(output_rows, dtype=torch.int64, device=device),
        num_candidates=max(map(num_candidates, sampled), default=0),
        prompt_lens=tuple(s.num_prompt_tokens for s in sequences),
        num_read_rows=len(output_rows) - len(sampled),
        wants_logits=any(map(needs_logits, sampled)) or any(r.num_logprobs is not None for r in reads),
        wants_hidden=any(s.sampling is not None and s.sampling.wants_hidden_state for s in sampled)
        or any(r.num_logprobs is None for r in reads),
    )


def _pad(tables: list[list[int]]) -> torch.Tensor:
    longest = max(len(table) for table in tables)
    return torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32)
