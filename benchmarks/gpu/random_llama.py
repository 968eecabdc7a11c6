"""A random network of a given shape on a device, in each precision. Makes no sense, takes its real time."""

from collections.abc import Iterator

import torch

from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, LayerWeights
from appliance.runtime.bitsandbytes_packing import bitsandbytes_packing
from appliance.runtime.precision import BITSANDBYTES
from appliance.runtime.weight_packing import Packing, int4_packing, int8_packing
from kernels.ops import AnyWeight, LinearWeight

_ROWS_AT_ONCE = 2048


def random_weights(
    config: ModelConfig, precision: str, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Raises BadSetting where a precision needs a library that is not there."""
    generator = torch.Generator(device=device).manual_seed(0)
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    packing = _packing(precision, dtype)

    def chunks(num_out: int, num_in: int) -> Iterator[torch.Tensor]:
        for first in range(0, num_out, _ROWS_AT_ONCE):
            shape = (min(_ROWS_AT_ONCE, num_out - first), num_in)
            yield torch.randn(shape, generator=generator, device=device) / num_in**0.5

    def dense(num_out: int, num_in: int) -> torch.Tensor:
        return torch.cat([chunk.to(dtype) for chunk in chunks(num_out, num_in)])

    def matrix(num_out: int, num_in: int) -> AnyWeight:
        if packing is None:
            return LinearWeight(weight=dense(num_out, num_in))
        return packing(chunks(num_out, num_in), None)

    def layer() -> LayerWeights:
        return LayerWeights(
            qkv=matrix(query_size + 2 * kv_size, hidden),
            output=matrix(hidden, query_size),
            attention_norm=torch.ones(hidden, device=device),
            feed_forward_norm=torch.ones(hidden, device=device),
            gate_up=matrix(2 * inner, hidden),
            down=matrix(hidden, inner),
        )

    return DecoderWeights(
        embedding=dense(config.vocab_size, hidden),
        layers=tuple(layer() for _ in range(config.num_layers)),
        final_norm=torch.ones(hidden, device=device),
        head=LinearWeight(weight=dense(config.vocab_size, hidden)),
    )


def _packing(precision: str, dtype: torch.dtype) -> Packing | None:
    if precision in BITSANDBYTES:
        return bitsandbytes_packing(precision, dtype)
    makers = {"int8": int8_packing, "int4": int4_packing}
    return makers[precision](dtype) if precision in makers else None


def step_weight_bytes(weights: DecoderWeights) -> int:
    """Bytes that one step reads of the weights: all but the embedding, of which it reads a few rows."""
    matrices = [weights.head]
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down):
            assert matrix is not None
            matrices.append(matrix)
    return sum(matrix.num_bytes for matrix in matrices)
