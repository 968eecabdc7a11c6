"""Blocks that wait in main memory: real pages and real tokens, on CPU tensors in place of a card's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.engine.batch import HostCopy
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import BlockId, FinishReason, SamplingParams
from appliance.engine.step_budget import FixedBudget
from appliance.engine.swap_space import HostMemory
from appliance.runtime.host_pages import HostPages, SwappingBackend
from appliance.runtime.kv_cache import allocate_kv
from appliance.runtime.runner import ModelRunner
from engine.builders import read_all, token_ids
from kernels.kv_layout import KVLayout, KVType
from oracles.tiny_model import CPU, load_eager, tiny_model

MODEL = tiny_model(seed=5)
BLOCK, PARAMS = 16, SamplingParams(temperature=0.0, max_tokens=60)


class SlowPrompts(FixedBudget):
    """Expects so much of computing again that blocks are always kept."""

    def prompt_s(self, num_tokens: int) -> float | None:
        return float(num_tokens)


def engine_of(path: Path, *, num_blocks: int, num_places: int, kv_dtype: torch.dtype) -> Engine:
    backend = load_eager(path, kv_dtype=kv_dtype, num_blocks=num_blocks)
    assert isinstance(backend, SwappingBackend)
    host = None
    if num_places:
        host = HostMemory(num_places=num_places, block_s=backend.attach_host(num_places))
    scheduler = Scheduler(
        BlockPool(num_blocks, BLOCK),
        max_sequences=8,
        step_tokens=64,
        context_length=256,
        enable_prefix_cache=False,
        budget=SlowPrompts(64),
        host=host,
    )
    return Engine(ModelRunner(backend), scheduler)


def answers(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    streams = [engine.submit(prompt, PARAMS) for prompt in prompts]
    while engine.step():
        engine._scheduler.check_invariants()
    found = []
    for stream in streams:
        events, finish = read_all(stream)
        assert finish.reason is FinishReason.LENGTH
        found.append(token_ids(events))
    return found


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8], ids=["float32", "int8 with scales"])
def test_sequences_that_waited_in_main_memory_get_the_tokens_of_an_undisturbed_run(
    tmp_path: Path, kv_dtype: torch.dtype
) -> None:
    path = MODEL.write(tmp_path / "tiny.gguf")
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 273, length).tolist() for length in (33, 17, 50, 1)]
    undisturbed = answers(engine_of(path, num_blocks=64, num_places=0, kv_dtype=kv_dtype), prompts)
    crowded = engine_of(path, num_blocks=12, num_places=40, kv_dtype=kv_dtype)
    assert answers(crowded, prompts) == undisturbed
    scheduler = crowded._scheduler
    assert scheduler.num_preemptions > 0
    assert scheduler.swap.num_saved_blocks > 0
    assert scheduler.swap.num_used_places == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_every_part_of_a_block_comes_back_to_another(dtype: torch.dtype) -> None:
    layout = KVLayout(block_size=4, num_kv_heads=2, head_size=8, dtype=KVType.of(dtype))
    layers = allocate_kv(layout, num_layers=3, num_blocks=5, device=CPU)
    parts = [part for layer in layers for part in _parts_of(layer)]
    for number, part in enumerate(parts):
        part.copy_(torch.arange(part.numel()).view(part.shape) * (number + 1) % 120)
    before = [part.clone() for part in parts]
    host = HostPages(layers, 2)
    host.save([HostCopy(block=BlockId(3), place=1), HostCopy(block=BlockId(0), place=0)])
    host.restore([HostCopy(block=BlockId(4), place=1), HostCopy(block=BlockId(3), place=0)])
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[4], old[3])
        assert torch.equal(part[3], old[0])
        assert torch.equal(part[:3], old[:3])


def test_timing_the_copies_leaves_the_pool_as_it_was() -> None:
    layout = KVLayout(block_size=4, num_kv_heads=2, head_size=8, dtype=KVType.F32)
    layers = allocate_kv(layout, num_layers=2, num_blocks=3, device=CPU)
    layers[0].keys.fill_(7)
    assert HostPages(layers, 9).block_s() > 0
    assert bool((layers[0].keys == 7).all())


def _parts_of(layer: object) -> list[torch.Tensor]:
    names = ("keys", "values", "key_scales", "value_scales")
    return [part for name in names if (part := getattr(layer, name)) is not None]
