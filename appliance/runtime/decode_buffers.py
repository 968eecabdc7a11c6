"""The fixed places of a decode step's inputs and outputs on a device, for up to so many sequences.

A recorded step reads its inputs there and leaves its outputs there; rows past a step's sequences are padding,
whose slot is -1, so that nothing of them is written into the KV pages. Knows no graphs.
"""

import torch

from appliance.model.config import ModelConfig
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from kernels.ops import RaggedQueries

# A padded row attends to one token of block 0, whatever is there: its output is nobody's.
_PADDED_CONTEXT = 1
_NO_SLOT = -1


class DecodeBuffers:
    """Inputs of S sequences with one new token each, and their logits and hidden rows."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_sequences: int,
        max_blocks: int,
        hidden_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_sequences = max_sequences
        self._max_blocks = max_blocks
        self._is_pinned = device.type == "cuda"
        # Token ids, positions and slots travel together.
        self._longs = torch.zeros(3, max_sequences, dtype=torch.int64, device=device)
        self._longs[2] = _NO_SLOT
        self._lens = torch.full((max_sequences,), _PADDED_CONTEXT, dtype=torch.int32, device=device)
        self._tables = torch.zeros(max_sequences, max_blocks, dtype=torch.int32, device=device)
        self._starts = torch.arange(max_sequences + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(max_sequences, device=device)
        self._logits = torch.empty(max_sequences, config.vocab_size, device=device)
        self._hidden = torch.empty(max_sequences, config.hidden_size, dtype=hidden_dtype, device=device)

    def inputs(self, bucket: int) -> ForwardInputs:
        """The first `bucket` sequences' places, as a step's inputs. Host copies say nothing of lengths."""
        return ForwardInputs(
            token_ids=self._longs[0, :bucket],
            positions=self._longs[1, :bucket],
            slots=self._longs[2, :bucket],
            ragged=RaggedQueries(
                query_starts=self._starts[: bucket + 1],
                context_lens=self._lens[:bucket],
                block_tables=self._tables[:bucket],
                host_query_starts=tuple(range(bucket + 1)),
                host_context_lens=(_PADDED_CONTEXT,) * bucket,
            ),
            output_rows=self._rows[:bucket],
        )

    def fits(self, inputs: ForwardInputs) -> bool:
        ragged = inputs.ragged
        return ragged.num_sequences <= self.max_sequences and ragged.block_tables.shape[1] <= self._max_blocks

    def fill(self, inputs: ForwardInputs, bucket: int, token_ids: torch.Tensor | None = None) -> None:
        """Put a step that lies in main memory into the first places, and padding behind it.

        Waits for nothing: the step before may be running. `token_ids` on the device replace the inputs' own.
        """
        num = inputs.ragged.num_sequences
        # New ones each time: what an earlier step is sent from may not have left yet.
        longs = torch.zeros(3, self.max_sequences, dtype=torch.int64, pin_memory=self._is_pinned)
        for row, values in enumerate((inputs.token_ids, inputs.positions, inputs.slots)):
            longs[row, :num] = values
        longs[2, num:] = _NO_SLOT
        lens = torch.full((bucket,), _PADDED_CONTEXT, dtype=torch.int32, pin_memory=self._is_pinned)
        lens[:num] = inputs.ragged.context_lens
        tables = inputs.ragged.block_tables
        if self._is_pinned:
            tables = tables.pin_memory()
        self._longs.copy_(longs, non_blocking=True)
        self._lens[:bucket].copy_(lens, non_blocking=True)
        self._tables[:num, : tables.shape[1]].copy_(tables, non_blocking=True)
        self._tables[num:bucket, :1] = 0
        if token_ids is not None:
            self._longs[0, :num].copy_(token_ids)

    def keep(self, outputs: ForwardOutputs, bucket: int) -> None:
        """Copy outputs to where they outlive what computed them, which shares its memory with other steps."""
        assert outputs.logits is not None
        assert outputs.hidden is not None
        self._logits[:bucket].copy_(outputs.logits)
        self._hidden[:bucket].copy_(outputs.hidden)

    def outputs(self, num_sequences: int) -> ForwardOutputs:
        return ForwardOutputs(logits=self._logits[:num_sequences], hidden=self._hidden[:num_sequences])
