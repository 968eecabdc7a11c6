"""Times steps of our engine and of plain torch on the same random weights. Knows no requests."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from appliance.model.decoder import DecoderWeights, ForwardInputs
from appliance.runtime.cuda import CudaBackend, cuda_kv_layout
from appliance.runtime.graph_capture import CudaGraphCapture
from appliance.runtime.kv_cache import allocate_kv
from appliance.runtime.rehearsal import largest_prompt
from benchmarks.gpu.plain_torch import PlainLlama, recorded
from benchmarks.gpu.plan import CheckPlan
from benchmarks.gpu.random_llama import step_weight_bytes
from benchmarks.gpu.timing import median_s
from kernels.ops import AttentionParams, Ops, RaggedQueries
from kernels.work import attention_prefill

Row = dict[str, object]


def make_backend(
    plan: CheckPlan, weights: DecoderWeights, ops: Ops, *, has_graphs: bool, max_sequences: int | None = None
) -> CudaBackend:
    return CudaBackend(
        plan.config,
        weights,
        ops,
        cuda_kv_layout(plan.config, plan.dtype),
        max_sequences=max_sequences or max(plan.batches),
        context_length=max(*plan.contexts, *plan.prompts) + 16,
        new_capture=(lambda: CudaGraphCapture(plan.device)) if has_graphs and plan.is_gpu else None,
    )


def decode_inputs(batch: int, context: int, block_size: int) -> ForwardInputs:
    """One new token of each sequence, the last of `context`; no block is in two sequences."""
    num_blocks = -(-context // block_size)
    tables = torch.arange(batch * num_blocks, dtype=torch.int32).view(batch, num_blocks)
    last = context - 1
    return ForwardInputs(
        token_ids=torch.arange(batch),
        positions=torch.full((batch,), last),
        slots=tables[:, -1].long() * block_size + last % block_size,
        ragged=RaggedQueries(
            query_starts=torch.arange(batch + 1, dtype=torch.int32),
            context_lens=torch.full((batch,), context, dtype=torch.int32),
            block_tables=tables,
            host_query_starts=tuple(range(batch + 1)),
            host_context_lens=(context,) * batch,
        ),
        output_rows=torch.arange(batch),
    )


def our_decode_rows(
    plan: CheckPlan,
    weights: DecoderWeights,
    ops: Ops,
    precision: str,
    copy_rate: float,
    *,
    graphs: tuple[bool, ...] = (True, False),
) -> Iterator[Row]:
    """Milliseconds of a decode step with and without graphs, and its share of the copy bandwidth."""
    for has_graphs in graphs if plan.is_gpu else (False,):
        backend = make_backend(plan, weights, ops, has_graphs=has_graphs)
        layout = backend.kv_layout
        block_bytes = layout.token_bytes * layout.block_size * plan.config.num_layers
        cells = [(batch, context) for context in plan.contexts for batch in plan.batches]
        needed = {cell: cell[0] * -(-cell[1] // layout.block_size) for cell in cells}
        room = _free_bytes(plan) * 0.85 // block_bytes
        fitting = [cell for cell in cells if needed[cell] <= room]
        backend.attach_kv(max(needed[cell] for cell in fitting))
        for batch, context in fitting:
            inputs = decode_inputs(batch, context, layout.block_size)
            seconds = median_s(partial(backend.forward, inputs), plan)
            moved = step_weight_bytes(weights) + batch * context * layout.token_bytes * plan.config.num_layers
            yield {
                "what": "decode",
                "by": f"ours, {precision}, graphs {'on' if has_graphs else 'off'}",
                "batch": batch,
                "context": context,
                "ms": seconds * 1e3,
                "tokens_per_s": batch / seconds,
                "share_of_copy": moved / seconds / copy_rate,
            }
        backend.detach_kv()


def our_prefill_rows(
    plan: CheckPlan, weights: DecoderWeights, ops: Ops, precision: str, matmul: float
) -> Iterator[Row]:
    backend = make_backend(plan, weights, ops, has_graphs=False)
    backend.attach_kv(-(-max(plan.prompts) // backend.kv_layout.block_size))
    for num_tokens in plan.prompts:
        inputs = _spread(
            largest_prompt(
                num_tokens=num_tokens,
                context_length=num_tokens,
                max_sequences=1,
                block_size=backend.kv_layout.block_size,
            )
        )
        seconds = median_s(partial(backend.forward, inputs), plan, burst=1)
        yield _prefill_row(plan, f"ours, {precision}", num_tokens, seconds, matmul)
    backend.detach_kv()


def attention_rows(plan: CheckPlan, ops: Ops, matmul: float) -> Iterator[Row]:
    """One layer's attention over whole prompts, and its share of the measured matmul rate."""
    config, layout = plan.config, cuda_kv_layout(plan.config, plan.dtype)
    for num_tokens in plan.prompts:
        num_blocks = -(-num_tokens // layout.block_size)
        (layer,) = allocate_kv(layout, num_layers=1, num_blocks=num_blocks, device=plan.device)
        query = torch.randn(num_tokens, config.num_heads, config.head_size, device=plan.device).to(plan.dtype)
        ragged = RaggedQueries(
            query_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
            context_lens=torch.tensor([num_tokens], dtype=torch.int32),
            block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
            host_query_starts=(0, num_tokens),
            host_context_lens=(num_tokens,),
        ).to(plan.device)
        params = AttentionParams(scale=config.query_scale)
        seconds = median_s(partial(ops.attention, query, layer, ragged, params), plan)
        work = attention_prefill(
            num_tokens, num_tokens, config.num_heads, config.num_kv_heads, config.head_size, "bf16"
        )
        yield {
            "what": "attention",
            "by": "ours, bf16",
            "batch": 1,
            "context": num_tokens,
            "ms": seconds * 1e3,
            "tokens_per_s": num_tokens / seconds,
            "share_of_matmul": work.operations / seconds / matmul,
        }


def plain_rows(plan: CheckPlan, weights: DecoderWeights, copy_rate: float, matmul: float) -> Iterator[Row]:
    """The same in plain torch, bf16; cells that its contiguous caches do not fit are left out."""
    plain = PlainLlama(plan.config, weights)
    for context in plan.contexts:
        for batch in plan.batches:
            with suppress(torch.OutOfMemoryError):
                yield from _plain_decode_rows(plan, plain, batch, context, copy_rate, weights)
    plain.allocate(1, max(plan.prompts))
    for num_tokens in plan.prompts:
        ids = torch.zeros(1, num_tokens, dtype=torch.int64, device=plan.device)
        seconds = median_s(partial(plain.prompt, ids), plan, burst=1)
        yield _prefill_row(plan, "plain torch, bf16", num_tokens, seconds, matmul)


def compiled_rows(plan: CheckPlan, weights: DecoderWeights, copy_rate: float) -> Iterator[Row]:
    """Decode in plain torch with layers under torch.compile. Takes what compiles on the host, too."""
    plain = PlainLlama(plan.config, weights, compiler=plan.compiler)
    for batch, context in plan.compiled_cells:
        yield from _plain_decode_rows(plan, plain, batch, context, copy_rate, weights, name="compiled torch")


def _plain_decode_rows(
    plan: CheckPlan,
    plain: PlainLlama,
    batch: int,
    context: int,
    copy_rate: float,
    weights: DecoderWeights,
    *,
    name: str = "plain torch",
) -> Iterator[Row]:
    plain.allocate(batch, context)
    ids = torch.zeros(batch, dtype=torch.int64, device=plan.device)
    layout = cuda_kv_layout(plan.config, plan.dtype)
    moved = step_weight_bytes(weights) + batch * context * layout.token_bytes * plan.config.num_layers
    runs = {"off": partial(plain.decode, ids)}
    if plan.is_gpu:
        runs["on"] = recorded(runs["off"])
    for graphs, run in runs.items():
        seconds = median_s(run, plan)
        yield {
            "what": "decode",
            "by": f"{name}, bf16, graphs {graphs}",
            "batch": batch,
            "context": context,
            "ms": seconds * 1e3,
            "tokens_per_s": batch / seconds,
            "share_of_copy": moved / seconds / copy_rate,
        }


def _prefill_row(plan: CheckPlan, by: str, num_tokens: int, seconds: float, matmul: float) -> Row:
    config = plan.config
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
    per_layer = config.hidden_size * (
        width + config.num_heads * config.head_size + 3 * config.intermediate_size
    )
    # Products of every token, and causal attention's two products; the output layer has one row.
    products = 2 * num_tokens * per_layer * config.num_layers
    attention = 2 * num_tokens**2 * config.num_heads * config.head_size * config.num_layers
    return {
        "what": "prefill",
        "by": by,
        "context": num_tokens,
        "ms": seconds * 1e3,
        "tokens_per_s": num_tokens / seconds,
        "share_of_matmul": (products + attention) / seconds / matmul,
    }


def _spread(inputs: ForwardInputs) -> ForwardInputs:
    """The same prompt with blocks of its own in order, as a real one has."""
    num_blocks = inputs.ragged.block_tables.shape[1]
    tables = torch.arange(num_blocks, dtype=torch.int32)[None, :]
    return replace(inputs, slots=inputs.positions, ragged=replace(inputs.ragged, block_tables=tables))


def _free_bytes(plan: CheckPlan) -> int:
    return torch.cuda.mem_get_info(plan.device)[0] if plan.is_gpu else 2**28
