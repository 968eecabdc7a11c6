"""The native library, built once per source change, and small random networks with a plain reference."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.abi import GateActivation, HeadNorm, Kind, NormRole, Placement, Role, Source
from kernels.cpu.build import build
from kernels.cpu.library import NativeLibrary
from kernels.cpu.native import NativeConfig, NativeModel, NativeModelBuilder, NativeRope
from kernels.cpu.pages import NativePages
from kernels.cpu.structs import NativeBatch, SomeLayers
from kernels.kv_layout import KVLayout, KVOrder, KVType

Array = np.ndarray


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> NativeLibrary:
    if sanitized := os.environ.get("APPLIANCE_TEST_NATIVE_LIBRARY"):
        return NativeLibrary(Path(sanitized))
    assert pytestconfig.cache is not None
    return NativeLibrary(build(Path(pytestconfig.cache.mkdir("native-cpu"))))


def random_blocks(rng: np.random.Generator, source: Source, rows: int, inputs: int) -> tuple[Array, Array]:
    """Rows as a file stores them, and their values as float32."""
    shape = (rows, inputs // 32)
    scale = (rng.uniform(0.5, 1.5, shape) * 0.02).astype(np.float16)
    scale = np.where(rng.random(shape) < 0.5, scale, -scale) if source is Source.Q4_0 else scale
    scale = scale / np.float16(16) if source is Source.Q8_0 else scale
    minimum = (-7.5 * scale * rng.uniform(0.8, 1.2, shape)).astype(np.float16)
    wide = scale.astype(np.float32)[..., None]
    if source is Source.Q8_0:
        q = rng.integers(-127, 128, (*shape, 32), dtype=np.int8)
        blocks = np.concatenate([scale[..., None].view(np.uint8), q.view(np.uint8)], axis=-1)
        return blocks.reshape(rows, -1), (wide * q).reshape(rows, inputs)
    q = rng.integers(0, 16, (*shape, 32), dtype=np.uint8)
    nibbles = q[..., :16] | q[..., 16:] << 4
    heads = [scale] if source is Source.Q4_0 else [scale, minimum]
    blocks = np.concatenate([*(head[..., None].view(np.uint8) for head in heads), nibbles], axis=-1)
    low = -8 * wide if source is Source.Q4_0 else minimum.astype(np.float32)[..., None]
    return blocks.reshape(rows, -1), (wide * q + low).reshape(rows, inputs)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A small network. Odd on purpose: nothing but head_size is a multiple of anything useful."""

    num_layers: int = 2
    hidden: int = 96
    ffn: int = 160
    num_heads: int = 6
    num_kv_heads: int = 2
    head_size: int = 16
    vocab: int = 131
    rotary: int = 16
    windows: tuple[int | None, ...] = (None, None)
    softcap: float | None = None
    logit_softcap: float | None = None
    qk_norm: HeadNorm = HeadNorm.NONE
    has_bias: bool = False
    placement: Placement = Placement.PRE
    activation: GateActivation = GateActivation.SILU
    residual_scale: float = 1.0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    has_head: bool = False
    source: Source = Source.F32
    kind: Kind | None = Kind.F32


@dataclass
class Network:
    """Random weights, their native model, and the plain forward pass in float64."""

    shape: Shape
    seed: int = 0
    linears: dict[tuple[Role, int], tuple[Array, Array, Array | None]] = field(default_factory=dict)
    norms: dict[tuple[NormRole, int], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, s = np.random.default_rng(self.seed), self.shape
        q, kv = s.num_heads * s.head_size, s.num_kv_heads * s.head_size
        sizes = {
            Role.QUERY: (q, s.hidden), Role.KEY: (kv, s.hidden), Role.VALUE: (kv, s.hidden),
            Role.OUTPUT: (s.hidden, q), Role.GATE: (s.ffn, s.hidden), Role.UP: (s.ffn, s.hidden),
            Role.DOWN: (s.hidden, s.ffn),
        }  # fmt: skip
        for role in (Role.EMBEDDING, Role.HEAD)[: 2 if s.has_head else 1]:
            self._add(rng, role, 0, (s.vocab, s.hidden))
        for layer in range(s.num_layers):
            for role, size in sizes.items():
                self._add(rng, role, layer, size)
            for role in self._layer_norms():
                size = s.hidden
                if role in (NormRole.QUERY, NormRole.KEY):
                    width = q if role is NormRole.QUERY else kv
                    size = s.head_size if s.qk_norm is HeadNorm.HEAD else width
                self.norms[role, layer] = rng.uniform(0.5, 1.5, size).astype(np.float32)
        self.norms[NormRole.FINAL, 0] = rng.uniform(0.5, 1.5, s.hidden).astype(np.float32)

    def _layer_norms(self) -> list[NormRole]:
        before, after = (
            [NormRole.ATTENTION_PRE, NormRole.FFN_PRE],
            [NormRole.ATTENTION_POST, NormRole.FFN_POST],
        )
        sides = {Placement.PRE: before, Placement.POST: after, Placement.BOTH: before + after}
        heads = [NormRole.QUERY, NormRole.KEY] if self.shape.qk_norm else []
        return sides[self.shape.placement] + heads

    def _add(self, rng: np.random.Generator, role: Role, layer: int, size: tuple[int, int]) -> None:
        has_bias = self.shape.has_bias and role in (Role.QUERY, Role.KEY, Role.VALUE)
        bias = rng.normal(0, 0.3, size[0]).astype(np.float32) if has_bias else None
        if self.shape.source is Source.F32:
            rows = values = (rng.normal(size=size) * size[1] ** -0.5).astype(np.float32)
        else:
            rows, values = random_blocks(rng, self.shape.source, *size)
        self.linears[role, layer] = rows, values, bias

    def config(self, **changes: object) -> NativeConfig:
        s = self.shape
        rope = NativeRope(frequencies=tuple(100.0 ** (-2 * i / s.rotary) for i in range(s.rotary // 2)))
        values = {
            "num_layers": s.num_layers,
            "hidden_size": s.hidden,
            "intermediate_size": s.ffn,
            "num_heads": s.num_heads,
            "num_kv_heads": s.num_kv_heads,
            "head_size": s.head_size,
            "vocab_size": s.vocab,
            "norm_eps": 1e-6,
            "attention_scale": s.head_size**-0.5,
            "ropes": (rope if s.rotary else None,) * s.num_layers,
            "windows": s.windows,
            "attention_softcap": s.softcap,
            "logit_softcap": s.logit_softcap,
            "logit_scale": s.logit_scale,
            "residual_scale": s.residual_scale,
            "embedding_scale": s.embedding_scale,
            "qk_norm": s.qk_norm,
            "norm_placement": s.placement,
            "activation": s.activation,
            "max_tokens": 512,
        }
        return NativeConfig(**{**values, **changes})  # type: ignore[arg-type]

    def native(self, library: NativeLibrary, **changes: object) -> NativeModel:
        builder = NativeModelBuilder(library, self.config(**changes))
        for (role, layer), (rows, _, bias) in self.linears.items():
            builder.set_linear(role, layer, rows, self.shape.source, kind=self.shape.kind, bias=bias)
        for (norm, layer), weight in self.norms.items():
            builder.set_norm(norm, layer, weight)
        return builder.finish()

    def _linear(self, role: Role, layer: int, x: Array) -> Array:
        _, values, bias = self.linears[role, layer]
        return x @ values.astype(np.float64).T + (0 if bias is None else bias)

    def _norm(self, role: NormRole, layer: int, x: Array) -> Array:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * self.norms[role, layer]

    def _turn(self, x: Array) -> Array:
        half = self.shape.rotary // 2
        if not half:
            return x
        angles = np.arange(len(x))[:, None] * 100.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _attention(self, layer: int, x: Array) -> Array:
        s, count = self.shape, len(x)
        q = self._linear(Role.QUERY, layer, x).reshape(count, s.num_heads, s.head_size)
        k = self._linear(Role.KEY, layer, x).reshape(count, s.num_kv_heads, s.head_size)
        v = self._linear(Role.VALUE, layer, x).reshape(count, s.num_kv_heads, s.head_size)
        if s.qk_norm:
            whole = (count, -1) if s.qk_norm is HeadNorm.FULL else (*q.shape[:1], -1, s.head_size)
            q = self._norm(NormRole.QUERY, layer, q.reshape(whole)).reshape(q.shape)
            k = self._norm(NormRole.KEY, layer, k.reshape(whole)).reshape(k.shape)
        groups = s.num_heads // s.num_kv_heads
        k, v = np.repeat(self._turn(k), groups, axis=1), np.repeat(v, groups, axis=1)
        scores = np.einsum("qhd,khd->hqk", self._turn(q), k) * s.head_size**-0.5
        if s.softcap:
            scores = s.softcap * np.tanh(scores / s.softcap)
        distance = np.arange(count)[:, None] - np.arange(count)
        window = s.windows[layer]
        scores = np.where((distance < 0) | (distance >= (window or count)), -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return self._linear(Role.OUTPUT, layer, np.einsum("hqk,khd->qhd", weights, v).reshape(count, -1))

    def _feed_forward(self, layer: int, x: Array) -> Array:
        gate = self._linear(Role.GATE, layer, x)
        if self.shape.activation is GateActivation.SILU:
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return self._linear(Role.DOWN, layer, gate * self._linear(Role.UP, layer, x))

    def reference(self, tokens: Array) -> Array:
        """Logits of every position of one sequence: [T, vocab], float64."""
        s = self.shape
        x = self.linears[Role.EMBEDDING, 0][1][tokens].astype(np.float64) * s.embedding_scale
        pre, post = s.placement is not Placement.POST, s.placement is not Placement.PRE
        blocks = (
            (self._attention, NormRole.ATTENTION_PRE, NormRole.ATTENTION_POST),
            (self._feed_forward, NormRole.FFN_PRE, NormRole.FFN_POST),
        )
        for layer in range(s.num_layers):
            for block, before, after in blocks:
                y = block(layer, self._norm(before, layer, x) if pre else x)
                x = x + s.residual_scale * (self._norm(after, layer, y) if post else y)
        head = Role.HEAD if s.has_head else Role.EMBEDDING
        logits = self._linear(head, 0, self._norm(NormRole.FINAL, 0, x)) * s.logit_scale
        return s.logit_softcap * np.tanh(logits / s.logit_softcap) if s.logit_softcap else logits


def make_pages(
    shape: Shape, num_blocks: int, block_size: int = 16, is_int8: bool = False
) -> list[NativePages]:
    """Pages full of what must never reach a result: not-a-number, or the largest values."""
    layout = KVLayout(
        block_size=block_size,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        dtype=KVType.INT8 if is_int8 else KVType.BF16,
        order=KVOrder.BKSD,
    )
    size, poison = layout.shape(num_blocks), 127 if is_int8 else 0x7FC0
    layers = []
    for _ in range(shape.num_layers):
        scales = [np.full(size[:3], np.nan, np.float32) if is_int8 else None for _ in range(2)]
        keys, values = (np.full(size, poison, np.int8 if is_int8 else np.uint16) for _ in range(2))
        layers.append(
            NativePages(layout=layout, keys=keys, values=values, key_scales=scales[0], value_scales=scales[1])
        )
    return layers


def make_batch(
    pieces: list[tuple[Array, int, list[int]]],
    block_size: int = 16,
    every_row: bool = True,
    prompt_lens: list[int] | None = None,
) -> NativeBatch:
    """A step of (new tokens, position of the first, block table) per sequence."""
    tokens, positions, slots, starts, lengths, rows = [], [], [], [0], [], []
    for new, first, table in pieces:
        places = range(first, first + len(new))
        tokens += list(new)
        positions += places
        slots += [table[p // block_size] * block_size + p % block_size for p in places]
        starts.append(len(tokens))
        lengths.append(first + len(new))
        rows += range(starts[-2], starts[-1]) if every_row else [starts[-1] - 1]
    tables = np.full((len(pieces), max(len(table) for _, _, table in pieces)), -1, np.int32)
    for i, (_, _, table) in enumerate(pieces):
        tables[i, : len(table)] = table
    named = {"tokens": tokens, "positions": positions, "slots": slots, "query_starts": starts}
    named |= {"context_lens": lengths, "logit_rows": rows, "prompt_lens": prompt_lens or [0] * len(pieces)}
    return NativeBatch(
        **{name: np.asarray(value, np.int32) for name, value in named.items()}, block_tables=tables
    )


def run_logits(model: NativeModel, batch: NativeBatch, layers: SomeLayers | None = None) -> Array:
    logits = np.full((batch.logit_rows.size, model.config.vocab_size), np.nan, np.float32)
    model.step(batch, logits=logits, layers=layers)
    return logits


@dataclass(frozen=True)
class Rig:
    """What the tests build with, in one place."""

    network: Callable[..., Network] = Network
    shape: type[Shape] = Shape
    pages: Callable[..., list[NativePages]] = make_pages
    batch: Callable[..., NativeBatch] = make_batch
    logits: Callable[..., Array] = run_logits
    blocks: Callable[..., tuple[Array, Array]] = random_blocks


@pytest.fixture(scope="session")
def rig() -> Rig:
    return Rig()
