"""The same network in plain torch, to compare with: cuBLAS, SDPA, contiguous caches, layers compiled."""

from collections.abc import Callable

import torch
from torch.nn import functional

from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights
from appliance.model.rope_frequencies import inverse_frequencies
from appliance.model.rope_tables import rope_tables
from kernels.ops import LinearWeight


class PlainLlama:
    """Decode over caches of one length, and prompts from nothing. Dense weights only.

    `compiler` names what torch.compile makes of a layer, the same for all of them; None for none.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, compiler: str | None = None) -> None:
        self._config = config
        self._weights = weights
        device = weights.embedding.device
        assert config.ropes[0] is not None
        self._frequencies = torch.tensor(inverse_frequencies(config.ropes[0]), device=device)
        self._caches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._run_layer = self._layer
        if compiler is not None:
            self._run_layer = torch.compile(self._layer, backend=compiler, dynamic=False, fullgraph=True)

    def allocate(self, batch: int, context: int) -> None:
        shape = (batch, self._config.num_kv_heads, context, self._config.head_size)
        like = self._weights.embedding
        self._caches = []
        for _ in range(self._config.num_layers):
            keys, values = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
            self._caches.append((keys, values))

    def decode(self, token_ids_B: torch.Tensor) -> torch.Tensor:
        """One token of each sequence, the last of the caches' length; returns the likeliest next ones."""
        return self._forward(token_ids_B[:, None], first=self._caches[0][0].shape[2] - 1)

    def prompt(self, token_ids_BT: torch.Tensor) -> torch.Tensor:
        return self._forward(token_ids_BT, first=0)

    @torch.inference_mode()
    def _forward(self, token_ids_BT: torch.Tensor, first: int) -> torch.Tensor:
        weights, config = self._weights, self._config
        num = token_ids_BT.shape[1]
        positions = torch.arange(first, first + num, device=token_ids_BT.device)
        cos, sin = rope_tables(positions, self._frequencies, 1.0)
        x = functional.embedding(token_ids_BT, weights.embedding)
        for layer, caches in zip(weights.layers, self._caches, strict=True):
            norms = layer.attention_norm, layer.feed_forward_norm
            matrices = [_dense(m) for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
            x = self._run_layer(x, norms, matrices, caches, (cos, sin), first)
        logits = functional.linear(self._norm(x[:, -1], weights.final_norm), _dense(weights.head))
        assert logits.shape[-1] == config.vocab_size
        return logits.argmax(-1)

    def _layer(
        self,
        x: torch.Tensor,
        norms: tuple[torch.Tensor | None, torch.Tensor | None],
        matrices: list[torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        tables: tuple[torch.Tensor, torch.Tensor],
        first: int,
    ) -> torch.Tensor:
        qkv, output, gate_up, down = matrices
        heads = functional.linear(self._norm(x, norms[0]), qkv)
        x = x + functional.linear(self._attend(heads, caches, first, tables), output)
        gate, up = functional.linear(self._norm(x, norms[1]), gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, down)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        assert weight is not None
        return functional.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), self._config.norm_eps)

    def _attend(
        self,
        qkv: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        first: int,
        tables: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config = self._config
        batch, num, _ = qkv.shape
        heads = qkv.view(batch, num, -1, config.head_size).transpose(1, 2)
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        query, key = _turn(query, tables), _turn(key, tables)
        keys, values = caches
        keys[:, :, first : first + num] = key
        values[:, :, first : first + num] = value
        key, value = keys[:, :, : first + num], values[:, :, : first + num]
        out = functional.scaled_dot_product_attention(
            query, key, value, is_causal=num > 1, enable_gqa=config.num_groups > 1
        )
        return out.transpose(1, 2).flatten(2)


def _dense(weight: object) -> torch.Tensor:
    assert isinstance(weight, LinearWeight)
    assert weight.bias is None
    return weight.weight


def _turn(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (table.to(x.dtype) for table in tables)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
