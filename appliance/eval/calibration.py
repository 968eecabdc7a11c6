"""Finds how to hold a model's matrices: scales of their inputs, and which to keep in 16 bits.

Reads text with the model in float32, a window at a time, forwards and back: that gives each matrix's inputs
and how much its products matter. Everything else is decided matrix by matrix from those records.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import torch

from appliance.errors import BadSetting
from appliance.eval.linear_errors import LinearError, joined, rounded, weight_error
from appliance.eval.logit_reader import step_inputs
from appliance.eval.recorded_inputs import MAX_ROWS, RecordedInputs, RecordingLinear
from appliance.eval.scale_search import find_scales
from appliance.eval.static_inputs import SeenInputs, StaticInputs, find_static
from appliance.matrix_losses import MatrixLoss
from appliance.model.config import ModelConfig
from appliance.model.decoder import Decoder, DecoderWeights, LayerWeights
from appliance.precision_map import PrecisionMap
from appliance.runtime.backend import eager_kv_layout
from appliance.runtime.channel_scales import scalable_places
from appliance.runtime.kv_cache import allocate_kv
from kernels.ops import AnyWeight, LinearWeight
from kernels.tables import reference_ops

# Tokens of a fresh context: logits of them for a vocabulary of 262,144, and their gradient, take 256 MiB.
WINDOW = 128
# A longer text is thinned out: twice a pass over 2,048 tokens is what an operator waits for.
MAX_WINDOWS = 16
Report = Callable[[str], None]
Recorded = dict[str, list[tuple[LinearWeight, RecordedInputs]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReport:
    """One name of a precision map. `scaled` is its error with `scales`, where some lose less.

    `static` is what one scale for its inputs does, None where too few tokens came by.
    """

    name: str
    num_bytes: int  # in 16 bits
    int8_bytes: int
    reach: float
    error: LinearError
    scaled: LinearError | None = None
    scales: torch.Tensor | None = None
    static: StaticInputs | None = None

    @property
    def saved_bytes(self) -> int:
        return self.num_bytes - self.int8_bytes

    @property
    def effect(self) -> float:
        """Nats per token that the model's answers move when this alone is INT8."""
        return (self.scaled or self.error).effect


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

    @property
    def unscaled_effect(self) -> float:
        """The same sum without scales."""
        return sum(m.error.effect for m in self.matrices if m.name not in self.kept)

    @property
    def static_wins(self) -> Mapping[str, StaticInputs]:
        """Of what becomes INT8, the matrices whose inputs lose no more by one scale."""
        return {name: static for name, static in self._inputs.items() if static.wins}

    @property
    def best_static(self) -> tuple[str, float]:
        """The name, of what becomes INT8, that one scale does most for, and its gain; ("", 1) without any."""
        return max(
            ((name, static.gain) for name, static in self._inputs.items()),
            default=("", 1.0),
            key=itemgetter(1),
        )

    @property
    def input_effect(self) -> float:
        """The sum of effects of inputs in INT8 besides, each token by a scale of its own."""
        return sum(static.by_token.effect for static in self._inputs.values())

    @property
    def static_effect(self) -> float:
        """The same sum with one scale for all tokens where that wins."""
        return sum((s.at_once if s.wins else s.by_token).effect for s in self._inputs.values())

    @property
    def all_static_effect(self) -> float:
        """The same sum with one scale for all tokens everywhere, whatever it loses."""
        return sum(static.at_once.effect for static in self._inputs.values())

    @property
    def _inputs(self) -> Mapping[str, StaticInputs]:
        return {m.name: m.static for m in self.matrices if m.static is not None and m.name not in self.kept}

    @property
    def losses(self) -> tuple[MatrixLoss, ...]:
        """What is worth keeping of the matrices."""
        return tuple(
            MatrixLoss(
                name=m.name,
                error=(m.scaled or m.error).relative,
                effect=m.effect,
                is_kept=m.name in self.kept,
            )
            for m in self.matrices
        )

    @property
    def precision_map(self) -> PrecisionMap:
        scales = {
            m.name: m.scales.numpy()
            for m in self.matrices
            if m.scales is not None and m.name not in self.kept
        }
        inputs = {name: static.scale for name, static in self.static_wins.items()}
        return PrecisionMap(kept=frozenset(self.kept), scales=scales, input_scales=inputs)


def calibrate(
    config: ModelConfig,
    weights: DecoderWeights,
    prompts: Sequence[Sequence[int]],
    *,
    size_share: float,
    error: float | None = None,
    is_scaling: bool = True,
    report: Report = lambda _: None,
) -> Calibration:
    """Measure all matrices and choose; `weights` are dense. Of two budgets, what keeps fewer holds.

    Raises BadSetting where there is nothing to read.
    """
    windows = cut(prompts)
    if not windows:
        raise BadSetting("the prompts hold no text of two tokens or more", param="prompts")
    num_tokens = sum(map(len, windows))
    recorded = record(config, weights, windows, report)
    places = scalable_places(config) if is_scaling else ()
    matrices = []
    for name, parts in recorded.items():
        report(f"trying {name}")
        matrices.append(
            _examined(name, parts, num_tokens, config, is_scalable=name.partition(".")[2] in places)
        )
    kept = choose_kept(matrices, size_share=size_share, error=error)
    return Calibration(matrices=tuple(matrices), kept=kept, num_tokens=num_tokens)


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


def cut(prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return windows of the prompts' tokens, spread over all of them; a window of one token says nothing."""
    windows = [p[start : start + WINDOW] for p in prompts for start in range(0, len(p), WINDOW)]
    windows = [window for window in windows if len(window) > 1]
    if len(windows) <= MAX_WINDOWS:
        return windows
    return [windows[i * len(windows) // MAX_WINDOWS] for i in range(MAX_WINDOWS)]


def record(
    config: ModelConfig, weights: DecoderWeights, windows: Sequence[Sequence[int]], report: Report
) -> Recorded:
    """Read the windows forwards and back, and return what every matrix was given."""
    named = {
        name: matrices
        for index, layer in enumerate(weights.layers)
        for name, matrices in _named(index, layer)
    }
    recording = RecordingLinear(
        {id(m): name for name, matrices in named.items() for m in matrices},
        rows_per_call=max(1, MAX_ROWS // max(1, len(windows))),
    )
    decoder = Decoder(config, weights, replace(reference_ops(), linear=recording))
    draw = torch.Generator(weights.embedding.device).manual_seed(0)
    for number, window in enumerate(windows, 1):
        report(f"reading text, {number} of {len(windows)}")
        _read_back(decoder, config, window, weights.embedding.device, draw)
    return {
        name: [(m, recording.recorded[id(m)]) for m in matrices if isinstance(m, LinearWeight)]
        for name, matrices in named.items()
    }


def _read_back(
    decoder: Decoder,
    config: ModelConfig,
    token_ids: Sequence[int],
    device: torch.device,
    draw: torch.Generator,
) -> None:
    """One window: logits, a draw from each of their distributions, and the gradients of the draws."""
    layout = eager_kv_layout(config, torch.float32)
    num_blocks = -(-len(token_ids) // layout.block_size)
    # Each layer has a pool of its own: gradients flow through writes, and views of one pool share theirs.
    pages = [
        allocate_kv(layout, num_layers=1, num_blocks=num_blocks, device=device)[0]
        for _ in range(config.num_layers)
    ]
    logits = decoder.forward(step_inputs(token_ids, 0, layout.block_size).to(device), pages).logits
    assert logits is not None
    log_shares = logits.log_softmax(-1)
    drawn = torch.multinomial(log_shares.detach().exp(), 1, generator=draw)
    log_shares.gather(1, drawn).sum().backward()  # type: ignore[no-untyped-call]


def _named(index: int, layer: LayerWeights) -> Iterator[tuple[str, tuple[AnyWeight, ...]]]:
    """A layer's matrices by their name in a precision map."""
    yield f"{index}.qkv", (layer.qkv,)
    yield f"{index}.output", (layer.output,)
    if layer.experts is not None:
        yield f"{index}.gate_up", layer.experts.gate_up
        yield f"{index}.down", layer.experts.down
    elif layer.gate_up is not None and layer.down is not None:
        yield f"{index}.gate_up", (layer.gate_up,)
        yield f"{index}.down", (layer.down,)


@torch.inference_mode()
def _examined(
    name: str,
    parts: Sequence[tuple[LinearWeight, RecordedInputs]],
    num_tokens: int,
    config: ModelConfig,
    *,
    is_scalable: bool,
) -> MatrixReport:
    """All matrices of one name; experts that no token went to have no say."""
    num_elements = sum(m.weight.numel() for m, _ in parts)
    seen = [(m, recorded) for m, recorded in parts if recorded.gradients]
    plain = [weight_error(r.x, m.weight.float(), r.gradient) for m, r in seen]
    shares = [r.num_inputs / m.weight.shape[1] / num_tokens for m, r in seen]
    scales = scaled = None
    if is_scalable and seen:
        weight, inputs = seen[0]
        scales = find_scales(inputs.x, weight.weight.float(), group=_group(name, config))
        if scales is not None:
            scaled = weight_error(inputs.x, weight.weight.float(), inputs.gradient, scales)
    return MatrixReport(
        name=name,
        num_bytes=2 * num_elements,
        int8_bytes=num_elements + 4 * sum(len(m.weight) for m, _ in parts),
        reach=max((r.reach for _, r in seen), default=0.0),
        error=joined(plain, shares),
        scaled=scaled,
        scales=scales,
        static=find_static(
            [_as_held(m, r, scales, share) for (m, r), share in zip(seen, shares, strict=True)]
        ),
    )


def _as_held(
    matrix: LinearWeight, recorded: RecordedInputs, scales: torch.Tensor | None, share: float
) -> SeenInputs:
    """A matrix in INT8 and what it is given then, its inputs divided by their scales."""
    rows = rounded(matrix.weight.float(), scales)
    return SeenInputs(
        x=recorded.x if scales is None else recorded.x / scales,
        rows=rows if scales is None else rows * scales,
        gradient=recorded.gradient,
        largest=recorded.span(scales),
        share=share,
    )


def _group(name: str, config: ModelConfig) -> tuple[int, int, int] | None:
    if not name.endswith(".output"):
        return None
    return config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_size
