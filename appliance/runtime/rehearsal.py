"""The largest step that a backend may be asked for, as inputs: to see what memory it takes. Runs nothing."""

import torch

from appliance.model.decoder import ForwardInputs
from kernels.ops import RaggedQueries


def largest_prompt(
    *, num_tokens: int, context_length: int, max_sequences: int, block_size: int
) -> ForwardInputs:
    """Return `num_tokens` tokens of prompts, with as many output rows as there may be sequences.

    All lie in block 0. A prompt longer than a context goes on in a second one.
    """
    lens = [context_length] * (num_tokens // context_length)
    lens += [num_tokens % context_length] if num_tokens % context_length else []
    starts = [0]
    for length in lens:
        starts.append(starts[-1] + length)
    positions = torch.cat([torch.arange(length) for length in lens])
    return ForwardInputs(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        positions=positions,
        slots=positions % block_size,
        ragged=RaggedQueries(
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor(lens, dtype=torch.int32),
            block_tables=torch.zeros(len(lens), -(-max(lens) // block_size), dtype=torch.int32),
            host_query_starts=tuple(starts),
            host_context_lens=tuple(lens),
        ),
        output_rows=torch.zeros(min(max_sequences, num_tokens), dtype=torch.int64),
    )
