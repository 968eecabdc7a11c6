"""Every operation against its formula in float64, on the device, at shapes a model has and at odd ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.gpu.plan import CheckPlan
from kernels.attention.reference import attend
from kernels.int4_weight import quantize_int4, unpack_int4
from kernels.int8_weight import pack_int8, unpack_int8
from kernels.kv.reference import read_kv
from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import AttentionParams, LinearWeight, Ops, RaggedQueries
from kernels.rope.reference import rope as turned

# Largest error as a share of the largest exact value: some rounding steps of the type.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One comparison; `error` is a share of the largest exact value."""

    name: str
    error: float
    tolerance: float

    @property
    def is_good(self) -> bool:
        return self.error <= self.tolerance  # false for not-a-number too


class KernelChecks:
    """All comparisons for one element type. Wide sizes are a model's, odd ones cross the edges of tiles."""

    def __init__(self, plan: CheckPlan, ops: Ops, dtype: torch.dtype) -> None:
        self._plan = plan
        self._ops = ops
        self._dtype = dtype
        self._generator = torch.Generator(device=plan.device).manual_seed(7)

    def run(self) -> Iterator[KernelCheck]:
        for part in (self._products, self._rows, self._pages, self._attention):
            for name, found, exact in part():
                error = (found.double() - exact.double()).abs().max() / exact.abs().max().clamp(min=1e-30)
                whole_name = f"{name} {self._dtype}".replace("torch.", "")
                yield KernelCheck(whole_name, error.item(), self._tolerance(name))

    def _tolerance(self, name: str) -> float:
        """Of the type, and half a step of 127 where what is compared was rounded to INT8."""
        is_int8 = name.startswith("quantize_tokens") or ("write_kv" in name and "int8" in name)
        return TOLERANCES[self._dtype] + (0.5 / 127 if is_int8 else 0.0)

    def _random(self, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=self._generator, device=self._plan.device)
        return values.to(self._dtype)

    def _products(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        ops, config = self._ops, self._plan.config
        for num_tokens in (1, 17, 40, 300):
            for num_out, num_in in ((config.hidden_size, config.intermediate_size), (70, 96)):
                x, rows = self._random(num_tokens, num_in), self._random(num_out, num_in)
                size = f"{num_tokens}x{num_in}x{num_out}"
                bias = self._random(num_out)
                dense = LinearWeight(weight=rows, bias=bias)
                yield f"linear {size}", ops.linear(x, dense), x.double() @ rows.double().T + bias.double()
                eight = pack_int8(rows, bias=bias, activation_dtype=self._dtype)
                wide = unpack_int8(eight).double()
                yield f"linear_int8 {size}", ops.linear_int8(x, eight), x.double() @ wide.T + bias.double()
                four = quantize_int4(rows, bias=bias, activation_dtype=self._dtype)
                wide = unpack_int4(four).double()
                yield f"linear_int4 {size}", ops.linear_int4(x, four), x.double() @ wide.T + bias.double()
                steps, scales = ops.quantize_tokens(x)
                yield f"quantize_tokens {size}", steps.float() * scales[:, None], x.double()
                at_once, same = ops.quantize_tokens(x, float(scales.max()))
                yield f"quantize_tokens {size} at once", at_once.float() * same[:, None], x.double()
                exact = (steps.double() @ eight.weight.double().T) * scales[:, None] * eight.scales
                found = ops.linear_int8_tokens(steps, scales, eight)
                yield f"linear_int8_tokens {size}", found, exact + bias.double()

    def _rows(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        ops, hidden = self._ops, self._plan.config.hidden_size
        table, ids = self._random(100, hidden), torch.arange(99, 0, -7, device=self._plan.device)
        yield "embed", ops.embed(ids, table), table.double()[ids]
        yield "select_rows", ops.select_rows(table, ids), table.double()[ids]
        for size in (hidden, 63):
            x, weight = self._random(40, size), self._random(size).float()
            residual = self._random(40, size).float()
            yield f"rms_norm {size}", ops.rms_norm(x, weight, 1e-5), _norm(x.double(), weight)
            normed, joined = ops.add_rms_norm(x, residual, weight, 1e-5)
            both = x.double() + residual.double()
            yield f"add_rms_norm {size}", normed, _norm(both, weight)
            yield f"add_rms_norm sum {size}", joined, both
            pair = self._random(40, 2 * size)
            gate, up = pair.double().chunk(2, -1)
            yield f"gated_silu {size}", ops.gated_silu(pair), functional.silu(gate) * up
            gelu = functional.gelu(gate, approximate="tanh")
            yield f"gated_gelu {size}", ops.gated_gelu(pair), gelu * up

    def _layer(self, dtype: torch.dtype, num_blocks: int) -> LayerKV:
        config = self._plan.config
        layout = KVLayout(
            block_size=_BLOCK,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            dtype=KVType.of(dtype),
            order=KVOrder.BKSD,
        )
        pages = [
            torch.zeros(layout.shape(num_blocks), dtype=dtype, device=self._plan.device) for _ in range(2)
        ]
        scales: list[torch.Tensor | None] = [None, None]
        if layout.is_int8:
            scales = [torch.zeros_like(page[..., 0], dtype=torch.float32) for page in pages]
        return LayerKV(
            layout=layout, keys=pages[0], values=pages[1], key_scales=scales[0], value_scales=scales[1]
        )

    def _pages(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        ops, config, device = self._ops, self._plan.config, self._plan.device
        for num_tokens, kv_dtype in ((5, self._dtype), (100, self._dtype), (100, torch.int8)):
            layer, name = self._layer(kv_dtype, 8), f"{num_tokens} tokens, {kv_dtype} pages"
            heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
            query, key, value = (self._random(num_tokens, n, config.head_size) for n in heads)
            angles = torch.rand(num_tokens, config.head_size // 2, device=device) * 6
            slots = torch.arange(num_tokens, device=device) + 3
            found = ops.rope_write_kv(query, key, value, angles.cos(), angles.sin(), slots, layer)
            tables = angles.double().cos(), angles.double().sin()
            yield f"rope_write_kv query, {name}", found, turned(query.double(), *tables)
            yield (
                f"rope, {name}",
                ops.rope(query, angles.cos(), angles.sin()),
                turned(query.double(), *tables),
            )
            blocks = torch.arange(8, device=device)
            keys, values = (pages[3 : 3 + num_tokens] for pages in read_kv(layer, blocks, torch.float64))
            yield f"rope_write_kv keys, {name}", keys, turned(key.double(), *tables)
            yield f"rope_write_kv values, {name}", values, value.double()
            ops.write_kv(key, value, slots, layer)
            yield (
                f"write_kv, {name}",
                read_kv(layer, blocks, torch.float64)[0][3 : 3 + num_tokens],
                key.double(),
            )
            before = layer.keys[0].clone()
            ops.copy_blocks(torch.tensor([0], device=device), torch.tensor([7], device=device), layer)
            yield f"copy_blocks, {name}", layer.keys[7], before

    def _attention(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        most = 4000 if self._plan.is_gpu else 60
        cases: tuple[tuple[str, list[tuple[int, int]]], ...] = (
            ("decode", [(1, 1), (1, most), (1, 17), (1, most // 3)]),
            ("prompts", [(33, 33), (most // 4, most // 4), (20, most)]),
            ("mixed", [(1, most), (50, 57), (1, 5)]),
        )
        settings = (
            AttentionParams(scale=self._plan.config.query_scale),
            AttentionParams(scale=self._plan.config.query_scale, window=37, softcap=30.0),
        )
        for kv_dtype in (self._dtype, torch.int8):
            for name, shares in cases:
                for params in settings:
                    found, exact = self._attend(shares, params, kv_dtype)
                    yield f"attention {name}, window {params.window}, {kv_dtype} pages", found, exact

    def _attend(
        self, shares: list[tuple[int, int]], params: AttentionParams, kv_dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config, device = self._plan.config, self._plan.device
        sizes = [-(-context // _BLOCK) for _, context in shares]
        layer = self._layer(kv_dtype, sum(sizes))
        num_slots = sum(sizes) * _BLOCK
        key, value = (self._random(num_slots, config.num_kv_heads, config.head_size) for _ in range(2))
        self._ops.write_kv(key, value, torch.arange(num_slots, device=device), layer)
        # Blocks of a sequence lie backwards.
        tables = [list(range(sum(sizes[: s + 1]) - 1, sum(sizes[:s]) - 1, -1)) for s in range(len(sizes))]
        starts = tuple(sum(new for new, _ in shares[:s]) for s in range(len(shares) + 1))
        lens = tuple(context for _, context in shares)
        padded = [table + [0] * (max(sizes) - len(table)) for table in tables]
        ragged = RaggedQueries(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            context_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            block_tables=torch.tensor(padded, dtype=torch.int32, device=device),
            host_query_starts=starts,
            host_context_lens=lens,
        )
        query = self._random(starts[-1], config.num_heads, config.head_size)
        exact = []
        for s, table in enumerate(tables):
            keys, values = read_kv(layer, torch.tensor(table, device=device), torch.float64)
            own = query[starts[s] : starts[s + 1]].double()
            exact.append(attend(own, keys[: lens[s]], values[: lens[s]], params))
        return self._ops.attention(query, layer, ragged, params), torch.cat(exact)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


def check_kernels(plan: CheckPlan, ops: Ops) -> Iterator[KernelCheck]:
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16) if plan.is_gpu else (torch.float32,)
    for dtype in dtypes:
        yield from KernelChecks(plan, ops, dtype).run()
