"""Finds which matrices to keep in 16 bits: tries each one in INT8 by itself, spends a budget on the worst.

Of each matrix: the error of its own product over all prompts, and how far the model's answers move when it
alone is INT8. The second decides, since errors of one size matter in one place and vanish in another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from appliance.eval.divergence import Divergence
from appliance.eval.linear_errors import ErrorSums, WatchedLinear
from appliance.eval.logit_reader import WINDOW, LogitReader
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, LayerWeights
from appliance.runtime.backend import EagerBackend, eager_kv_layout
from kernels.int8_weight import pack_int8
from kernels.ops import AnyWeight, LinearWeight
from kernels.tables import reference_ops

# Tokens that every matrix is tried on: enough for an order, few enough for a hundred tries.
_TRIED_TOKENS = 192
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReport:
    """One name of a precision map. `effect` is the mean KL in nats when it alone is INT8."""

    name: str
    num_bytes: int  # in 16 bits
    int8_bytes: int
    errors: ErrorSums
    effect: float

    @property
    def saved_bytes(self) -> int:
        return self.num_bytes - self.int8_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Every matrix, and the names to keep in 16 bits, worst first."""

    matrices: tuple[MatrixReport, ...]
    kept: tuple[str, ...]
    num_tokens: int

    @property
    def size_share(self) -> float:
        """The matrices' bytes under this map, as a share of those in 16 bits."""
        held = sum(m.num_bytes if m.name in self.kept else m.int8_bytes for m in self.matrices)
        return held / sum(m.num_bytes for m in self.matrices)

    @property
    def remaining_effect(self) -> float:
        """The sum of effects of what becomes INT8."""
        return sum(m.effect for m in self.matrices if m.name not in self.kept)


@torch.inference_mode()
def calibrate(
    config: ModelConfig,
    weights: DecoderWeights,
    prompts: Sequence[Sequence[int]],
    *,
    size_share: float,
    error: float | None = None,
    report: Report = lambda _: None,
) -> Calibration:
    """Measure all matrices and choose; `weights` are dense. Of two budgets, what keeps fewer holds."""
    report("recording activations")
    sums = _watch(config, weights, prompts)
    names = list(sums)
    effects = {}
    tried = _first_tokens(prompts)
    exact = _logits(config, weights, tried)
    for index, name in enumerate(names):
        report(f"trying {name} in INT8, {index + 1} of {len(names)}")
        found = _logits(config, with_int8(weights, name), tried)
        effects[name] = _mean_kl(found, exact)
    matrices = tuple(_matrix_report(weights, name, sums[name], effects[name]) for name in names)
    kept = choose_kept(matrices, size_share=size_share, error=error)
    return Calibration(matrices=matrices, kept=kept, num_tokens=sum(map(len, prompts)))


def choose_kept(
    matrices: Sequence[MatrixReport], *, size_share: float, error: float | None = None
) -> tuple[str, ...]:
    """Keep in 16 bits what has most effect per byte that INT8 saves, while all fit `size_share` of 16 bits.

    With `error`, stop as soon as the effects of the others sum to that or less.
    """
    room = size_share * sum(m.num_bytes for m in matrices) - sum(m.int8_bytes for m in matrices)
    left = sum(m.effect for m in matrices)
    kept = []
    for matrix in sorted(matrices, key=lambda m: m.effect / m.saved_bytes, reverse=True):
        if error is not None and left <= error:
            break
        if matrix.saved_bytes <= room:
            room -= matrix.saved_bytes
            left -= matrix.effect
            kept.append(matrix.name)
    return tuple(kept)


def places(layer: LayerWeights) -> dict[str, tuple[AnyWeight, ...]]:
    """A layer's matrices by their place in a precision map."""
    found: dict[str, tuple[AnyWeight, ...]] = {"qkv": (layer.qkv,), "output": (layer.output,)}
    if layer.experts is not None:
        return found | {"gate_up": layer.experts.gate_up, "down": layer.experts.down}
    assert layer.gate_up is not None
    assert layer.down is not None
    return found | {"gate_up": (layer.gate_up,), "down": (layer.down,)}


def with_int8(weights: DecoderWeights, name: str) -> DecoderWeights:
    """Return the network with the matrices of one name in INT8."""
    number, place = name.split(".")
    index = int(number)
    layer = weights.layers[index]
    packed = tuple(map(_pack, places(layer)[place]))
    if layer.experts is not None and place in ("gate_up", "down"):
        experts = layer.experts
        experts = replace(experts, gate_up=packed) if place == "gate_up" else replace(experts, down=packed)
        changed = replace(layer, experts=experts)
    else:
        changed = _with_place(layer, place, packed[0])
    return replace(weights, layers=(*weights.layers[:index], changed, *weights.layers[index + 1 :]))


def _with_place(layer: LayerWeights, place: str, weight: AnyWeight) -> LayerWeights:
    if place == "qkv":
        return replace(layer, qkv=weight)
    if place == "output":
        return replace(layer, output=weight)
    return replace(layer, gate_up=weight) if place == "gate_up" else replace(layer, down=weight)


def _pack(weight: AnyWeight) -> AnyWeight:
    assert isinstance(weight, LinearWeight)
    return pack_int8(weight.weight, bias=weight.bias, activation_dtype=torch.float32)


def _named(weights: DecoderWeights) -> Iterator[tuple[str, tuple[AnyWeight, ...]]]:
    for index, layer in enumerate(weights.layers):
        yield from ((f"{index}.{place}", matrices) for place, matrices in places(layer).items())


def _watch(
    config: ModelConfig, weights: DecoderWeights, prompts: Sequence[Sequence[int]]
) -> dict[str, ErrorSums]:
    watched = WatchedLinear({id(m): name for name, matrices in _named(weights) for m in matrices})
    ops = replace(reference_ops(), linear=watched)
    reader = LogitReader(EagerBackend(config, weights, ops, eager_kv_layout(config, torch.float32)))
    for prompt in prompts:
        for start in range(0, len(prompt), WINDOW):
            for _ in reader.read(prompt[start : start + WINDOW]):
                pass
    return watched.sums


def _first_tokens(prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The beginnings of all prompts, a like share of each."""
    share = max(8, _TRIED_TOKENS // len(prompts))
    num_prompts = _TRIED_TOKENS // share
    return [prompt[:share] for prompt in prompts[:: max(1, len(prompts) // num_prompts)]][:num_prompts]


def _logits(
    config: ModelConfig, weights: DecoderWeights, prompts: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    backend = EagerBackend(config, weights, reference_ops(), eager_kv_layout(config, torch.float32))
    reader = LogitReader(backend)
    return [chunk for prompt in prompts for chunk in reader.read(prompt)]


def _mean_kl(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    divergence = Divergence()
    for logits, expected in zip(found, exact, strict=True):
        divergence.add(logits, expected, torch.zeros(len(logits), dtype=torch.int64))
    return divergence.summary().mean_kl


def _matrix_report(weights: DecoderWeights, name: str, errors: ErrorSums, effect: float) -> MatrixReport:
    number, place = name.split(".")
    matrices = [m for m in places(weights.layers[int(number)])[place] if isinstance(m, LinearWeight)]
    num_elements = sum(m.weight.numel() for m in matrices)
    return MatrixReport(
        name=name,
        num_bytes=2 * num_elements,
        int8_bytes=num_elements + 4 * sum(len(m.weight) for m in matrices),
        errors=errors,
        effect=effect,
    )
