"""The native CPU backend: packed integer weights, one native call per step. Knows no queue."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.engine.batch import BlockCopy
from appliance.model.config import Activation, ModelConfig, NormPlacement, QKNorm
from appliance.model.decoder import Candidates, ForwardInputs, ForwardOutputs
from appliance.model.rope_tables import inverse_frequencies
from appliance.runtime.kv_cache import allocate_kv, copy_blocks
from appliance.runtime.native_sampler import TokenChoice
from kernels.cpu.abi import GateActivation, HeadNorm, Placement
from kernels.cpu.native import NativeConfig, NativeModel, NativeRope
from kernels.cpu.structs import NativeBatch, RowChoice, SomeLayers
from kernels.kv_layout import KVLayout, KVOrder, LayerKV


class CpuBackend:
    """Runs steps in the native library. Torch holds the pages and takes part in nothing else."""

    def __init__(self, config: ModelConfig, model: NativeModel, layout: KVLayout) -> None:
        self._config = config
        self._model = model
        self._layout = layout
        self.pages: tuple[LayerKV, ...] = ()

    @property
    def kv_layout(self) -> KVLayout:
        return self._layout

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def level(self) -> str:
        """The instruction-set level in use."""
        return self._model.level

    @property
    def weights_bytes(self) -> int:
        return self._model.weight_bytes

    def take_phase_seconds(self) -> dict[str, float]:
        """Seconds of the steps since last asked, by phase of the native library."""
        return self._model.take_phase_seconds()

    def attach_kv(self, num_blocks: int, layout: KVLayout | None = None) -> None:
        self._layout = layout or self._layout
        layers = self._config.num_layers
        self.pages = allocate_kv(self._layout, num_layers=layers, num_blocks=num_blocks, device=self.device)
        self._model.bind_kv(self.pages)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        copy_blocks(self.pages, copies)

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        return self._run(inputs, None)

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    @property
    def hidden_size(self) -> int:
        return self._config.hidden_size

    def forward_layers(
        self, inputs: ForwardInputs, layers: range, between: torch.Tensor
    ) -> ForwardOutputs | None:
        some = SomeLayers(layers.start, layers.stop, between.numpy())
        if layers.stop == self._config.num_layers:
            return self._run(inputs, some)
        batch = native_batch(inputs)
        self._model.step(replace(batch, logit_rows=batch.logit_rows[:0]), layers=some)
        return None

    def _run(self, inputs: ForwardInputs, layers: SomeLayers | None) -> ForwardOutputs:
        config, num_rows = self._config, len(inputs.output_rows)
        logits = np.empty((num_rows, config.vocab_size), np.float32) if inputs.wants_logits else None
        hidden = np.empty((num_rows, config.hidden_size), np.float32) if inputs.wants_hidden else None
        best = self._model.step(
            native_batch(inputs), top_k=inputs.num_candidates, logits=logits, hidden=hidden, layers=layers
        )
        return ForwardOutputs(
            logits=None if logits is None else torch.from_numpy(logits),
            hidden=None if hidden is None else torch.from_numpy(hidden),
            candidates=Candidates(ids=torch.from_numpy(best.ids), logits=torch.from_numpy(best.values)),
        )

    def choose(self, choices: Sequence[TokenChoice]) -> list[int]:
        return self._model.choose([_row_choice(choice) for choice in choices])


def _row_choice(choice: TokenChoice) -> RowChoice:
    rules = choice.rules
    return RowChoice(
        logits=choice.logits,
        mask=choice.mask,
        temperature=0.0 if rules.is_greedy else rules.temperature,
        top_k=rules.top_k,
        top_p=rules.top_p,
        min_p=rules.min_p,
        number=rules.number,
    )


def native_batch(inputs: ForwardInputs) -> NativeBatch:
    """The same step as arrays of int32."""
    ragged = inputs.ragged
    return NativeBatch(
        tokens=_int32(inputs.token_ids),
        positions=_int32(inputs.positions),
        slots=_int32(inputs.slots),
        query_starts=_int32(ragged.query_starts),
        context_lens=_int32(ragged.context_lens),
        prompt_lens=np.array(inputs.prompt_lens or (0,) * ragged.num_sequences, np.int32),
        block_tables=_int32(ragged.block_tables),
        logit_rows=_int32(inputs.output_rows),
    )


def _int32(values: torch.Tensor) -> NDArray[np.int32]:
    array: NDArray[np.int32] = values.numpy().astype(np.int32, copy=False)
    return array


def cpu_block_size(head_size: int) -> int:
    """Tokens in a page: the fewest that cost no time, since half of a last page is wasted.

    Measured by benchmarks/kv_pages.py: heads of 64 take the same time with 16 to 64 tokens in a page; those
    of 256 are a fifth slower with 16 than with 64 at 16 sequences of 2,048.
    """
    return 32 if head_size <= 64 else 64


def cpu_kv_layout(config: ModelConfig, dtype: torch.dtype) -> KVLayout:
    """Pages as the library reads them: a head's slots together."""
    return KVLayout(
        block_size=cpu_block_size(config.head_size),
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        dtype=dtype,
        order=KVOrder.BKSD,
    )


@dataclass(frozen=True, slots=True)
class Activations:
    """What activations are rounded to: `bits` as in NativeConfig, and whether prompts may go in bfloat16."""

    bits: int
    prompts_in_bf16: bool


def native_config(
    config: ModelConfig, *, activations: Activations, num_threads: int, max_tokens: int
) -> NativeConfig:
    """The library's view of a network. Raises UnsupportedModel for a RoPE scaling nobody computes yet."""
    ropes = {
        rope: NativeRope(
            frequencies=tuple(inverse_frequencies(rope).tolist()), attention_factor=rope.attention_factor
        )
        for rope in set(config.ropes)
        if rope is not None
    }
    experts = config.experts
    return NativeConfig(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        vocab_size=config.vocab_size,
        norm_eps=config.norm_eps,
        attention_scale=config.query_scale,
        ropes=tuple(None if rope is None else ropes[rope] for rope in config.ropes),
        windows=tuple(config.window(layer) for layer in range(config.num_layers)),
        attention_softcap=config.attention_softcap,
        logit_softcap=config.logit_softcap,
        logit_scale=config.logit_scale,
        residual_scale=config.residual_scale,
        embedding_scale=config.embedding_scale,
        qk_norm=_QK_NORMS[config.qk_norm],
        norm_placement=_PLACEMENTS[config.norm_placement],
        activation=_ACTIVATIONS[config.activation],
        num_experts=experts.num_experts if experts else 0,
        num_active_experts=experts.num_active if experts else 0,
        expert_size=experts.intermediate_size if experts else 0,
        normalizes_experts=experts.normalizes_weights if experts else False,
        max_tokens=max_tokens,
        num_threads=num_threads,
        activation_bits=activations.bits,
        prompts_in_bf16=activations.prompts_in_bf16,
    )


_PLACEMENTS = {
    NormPlacement.PRE: Placement.PRE,
    NormPlacement.POST: Placement.POST,
    NormPlacement.BOTH: Placement.BOTH,
}
_QK_NORMS = {QKNorm.NONE: HeadNorm.NONE, QKNorm.HEAD: HeadNorm.HEAD, QKNorm.FULL: HeadNorm.FULL}
_ACTIVATIONS = {
    Activation.SILU: GateActivation.SILU,
    Activation.GELU_TANH: GateActivation.GELU_TANH,
}
