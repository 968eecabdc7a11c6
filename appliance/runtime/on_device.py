"""Sends numbers and tensors to a device while it works. Knows no step.

What is sent to a card starts from pinned memory: other memory may leave only when all before it is done.
"""

from dataclasses import replace

import torch

from appliance.model.decoder import ForwardInputs


def to_device(values: object, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Send a list of numbers, or of lists, without waiting for what the device is doing."""
    return torch.tensor(values, dtype=dtype, pin_memory=_is_card(device)).to(device, non_blocking=True)


def sent(inputs: ForwardInputs, device: torch.device) -> ForwardInputs:
    """Send a step that lies in main memory, without waiting for what the device is doing."""
    ragged = inputs.ragged
    return replace(
        inputs,
        token_ids=_sent(inputs.token_ids, device),
        positions=_sent(inputs.positions, device),
        slots=_sent(inputs.slots, device),
        output_rows=_sent(inputs.output_rows, device),
        ragged=replace(
            ragged,
            query_starts=_sent(ragged.query_starts, device),
            context_lens=_sent(ragged.context_lens, device),
            block_tables=_sent(ragged.block_tables, device),
        ),
    )


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return (tensor.pin_memory() if _is_card(device) else tensor).to(device, non_blocking=True)


def _is_card(device: torch.device) -> bool:
    return device.type == "cuda"
