"""A step's new tokens one after the other, as plain lists. Knows no tensors and no device."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from appliance.engine.batch import ScheduledSequence
from appliance.runtime.sampling_needs import needs_logits, num_candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """T new tokens of S sequences, in order, and what is asked of which of them.

    The output rows are the last tokens of sampled sequences; behind these come the rows that are read inside
    prompts.
    """

    token_ids: list[int]  # (T)
    positions: list[int]  # (T)
    slots: list[int]  # (T)
    query_starts: list[int]  # (S + 1), from 0 to T
    context_lens: list[int]  # (S), new tokens included
    prompt_lens: list[int]  # (S)
    block_tables: list[list[int]]  # (S, most blocks), ends filled with 0
    output_rows: list[int]  # (R)
    num_read_rows: int  # of the output rows, at their end
    num_candidates: int  # best tokens that are read of each row
    wants_logits: bool
    wants_hidden: bool


def flatten(sequences: Sequence[ScheduledSequence], block_size: int) -> FlatStep:
    """Flatten the work of at least one sequence."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for s in sequences:
        token_ids.extend(s.new_token_ids)
        span = range(s.num_computed_tokens, s.num_computed_tokens + s.num_new_tokens)
        positions.extend(span)
        slots.extend(s.block_table[p // block_size] * block_size + p % block_size for p in span)
    starts = [0, *accumulate(s.num_new_tokens for s in sequences)]
    output_rows = [starts[i + 1] - 1 for i, s in enumerate(sequences) if s.sampling is not None]
    sampled = [s for s in sequences if s.sampling is not None]
    for start, s in zip(starts, sequences, strict=False):
        output_rows.extend(start + position - s.num_computed_tokens for position in s.read_positions)
    reads = [s.prompt_read for s in sequences if s.prompt_read is not None and s.read_positions]
    counts = [*map(num_candidates, sampled), *(read.num_logprobs or 0 for read in reads)]
    return FlatStep(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        query_starts=starts,
        context_lens=[s.num_computed_tokens + s.num_new_tokens for s in sequences],
        prompt_lens=[s.num_prompt_tokens for s in sequences],
        block_tables=_padded([list(s.block_table) for s in sequences]),
        output_rows=output_rows,
        num_read_rows=len(output_rows) - len(sampled),
        num_candidates=max(counts, default=0),
        wants_logits=any(map(needs_logits, sampled)) or any(r.num_logprobs is not None for r in reads),
        wants_hidden=any(s.sampling is not None and s.sampling.wants_hidden_state for s in sampled)
        or any(r.num_logprobs is None for r in reads),
    )


def _padded(tables: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, tables))
    return [table + [0] * (longest - len(table)) for table in tables]
