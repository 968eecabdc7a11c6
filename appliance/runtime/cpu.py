"""The native CPU backend: packed integer weights, one native call per step. Knows no queue and no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import BlockCopy
from appliance.model.config import Activation, ModelConfig, NormPlacement, QKNorm
from appliance.model.rope_frequencies import inverse_frequencies
from appliance.runtime.device import CPU, Device
from appliance.runtime.native_sampler import TokenChoice
from appliance.runtime.native_step import NativeOutputs, NativeStep
from appliance.runtime.sampling_needs import MAX_CANDIDATES
from kernels.cpu.abi import GateActivation, HeadNorm, Placement
from kernels.cpu.native import NativeConfig, NativeModel, NativeRope
from kernels.cpu.pages import NativePages, PagesAhead, allocate_pages
from kernels.cpu.structs import RowChoice, SomeLayers
from kernels.kv_layout import KVLayout, KVOrder, KVType

if TYPE_CHECKING:
    from appliance.model.decoder import ForwardInputs, ForwardOutputs


class CpuBackend:
    """Runs steps in the native library, on arrays; `forward` takes the same steps as tensors."""

    def __init__(self, config: ModelConfig, model: NativeModel, layout: KVLayout) -> None:
        self._config = config
        self._model = model
        self._layout = layout
        self.pages: tuple[NativePages, ...] = ()

    @property
    def kv_layout(self) -> KVLayout:
        return self._layout

    @property
    def device(self) -> Device:
        return CPU

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
        self.pages = allocate_pages(self._layout, num_blocks, self._config.num_layers)
        self._model.bind_kv(self.pages)
        self._ahead = PagesAhead(self.pages)
        self._ahead.reach(0)

    @property
    def num_committed_blocks(self) -> int:
        return self._ahead.num_blocks

    @property
    def commit_block_s(self) -> float:
        return self._ahead.block_s

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """One after the other, since a target may be the next one's source."""
        for copy in copies:
            for layer in self.pages:
                for pages in layer.arrays():
                    pages[copy.target] = pages[copy.source]

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    @property
    def hidden_size(self) -> int:
        return self._config.hidden_size

    def step(self, step: NativeStep) -> NativeOutputs:
        """Run one step. Of fewer tokens than asked for, all are the best."""
        return self._run(step, None)

    def step_layers(
        self, step: NativeStep, layers: range, between: NDArray[np.float32]
    ) -> NativeOutputs | None:
        some = SomeLayers(layers.start, layers.stop, between)
        if layers.stop == self._config.num_layers:
            return self._run(step, some)
        self._ahead.reach(int(step.batch.slots.max()) // self._layout.block_size)
        self._model.step(replace(step.batch, logit_rows=step.batch.logit_rows[:0]), layers=some)
        return None

    def _run(self, step: NativeStep, layers: SomeLayers | None) -> NativeOutputs:
        self._ahead.reach(int(step.batch.slots.max()) // self._layout.block_size)
        config, num_rows = self._config, step.batch.logit_rows.size
        logits = np.empty((num_rows, config.vocab_size), np.float32) if step.wants_logits else None
        hidden = np.empty((num_rows, config.hidden_size), np.float32) if step.wants_hidden else None
        top_k = min(step.num_candidates, config.vocab_size, MAX_CANDIDATES)
        best = self._model.step(step.batch, top_k=top_k, logits=logits, hidden=hidden, layers=layers)
        return NativeOutputs(best=best, logits=logits, hidden=hidden)

    def forward(self, inputs: "ForwardInputs") -> "ForwardOutputs":
        """Run one step given as tensors."""
        from appliance.runtime.cpu_tensors import native_step, tensor_outputs

        return tensor_outputs(self.step(native_step(inputs)))

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


def cpu_block_size(head_size: int, dtype: KVType) -> int:
    """Tokens in a page: the fewest that cost no time, since half of a last page is wasted.

    Measured by benchmarks/kv_pages.py at 16 sequences of 2,048: in bf16 heads of 64 take the same time within
    noise with 32 and 64 tokens in a page, those of 256 are a fifth slower with 16 than with 64. INT8 pages
    have half the bytes: heads of 64 were a quarter slower with 32 than with 64.
    """
    return 32 if head_size <= 64 and dtype is not KVType.INT8 else 64


def cpu_kv_layout(config: ModelConfig, dtype: KVType) -> KVLayout:
    """Pages as the library reads them: a head's slots together."""
    return KVLayout(
        block_size=cpu_block_size(config.head_size, dtype),
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        dtype=dtype,
        order=KVOrder.BKSD,
    )


@dataclass(frozen=True, slots=True)
class Activations:
    """What activations are rounded to: `bits` and `is_rough` as in NativeConfig."""

    bits: int
    is_rough: bool


def native_config(
    config: ModelConfig, *, activations: Activations, num_threads: int, max_tokens: int
) -> NativeConfig:
    """The library's view of a network. Raises UnsupportedModel for a RoPE scaling nobody computes yet."""
    ropes = {
        rope: NativeRope(frequencies=inverse_frequencies(rope), attention_factor=rope.attention_factor)
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
        is_rough=activations.is_rough,
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
