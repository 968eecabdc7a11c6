"""The native CPU backend, loaded as the product loads it, against the formulas and against itself."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.batch import ScheduledSequence
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams
from appliance.engine.step_budget import FixedBudget
from appliance.formats.gguf import read_gguf
from appliance.runtime.backend import Backend
from appliance.runtime.layer_slices import LayeredBackend
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from appliance.runtime.runners import make_runner
from engine.builders import read_all, token_ids
from oracles.llama import LlamaShape, llama_logits
from oracles.tiny_model import CPU, TinyModel, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(5).integers(0, 273, 40).tolist()
CASES = {
    "plain": tiny_model(),
    "biases": tiny_model(has_bias=True),
    "untied head": tiny_model(has_head=True),
    "frequency factors": tiny_model(frequency_factors=(1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)),
    "linear scaling": tiny_model(shape=LlamaShape(position_divisor=4.0)),
    "part of each head turns": tiny_model(shape=LlamaShape(rotary_size=6)),
    "one KV head": tiny_model(shape=LlamaShape(num_kv_heads=1)),
}
# Root mean square error over that of the logits, a third above what is seen. KV pages are bf16 at best.
COSTS = {"f32": 0.013, "bf16": 0.025, "int8": 0.06}


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    """Where the kernels' own tests build the library too: once for all."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))


def load(path: Path, library_folder: Path, *, num_threads: int = 2, **wishes: str) -> LoadedBackend:
    words = {"backend": "cpu", "precision": "auto", "activations": "auto", "kv_dtype": "auto"} | wishes
    with read_gguf(path) as file:
        asked = LoadWishes(
            device=CPU,
            num_threads=num_threads,
            step_tokens=64,
            free_bytes=2**33,
            library_folder=library_folder,
            **words,
        )
        return load_backend(file, asked, lambda *_: None)


def pool_of(backend: Backend, num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, backend.kv_layout.block_size)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_the_formulas_at_every_position(
    tmp_path: Path, library_folder: Path, name: str
) -> None:
    model = CASES[name]
    loaded = load(model.write(tmp_path / "tiny.gguf"), library_folder, precision="f32")
    loaded.backend.attach_kv(8)
    expected = llama_logits(model.tensors, model.shape, TOKENS)
    found = logits_by_chunks(loaded.backend, TOKENS, (1,) * len(TOKENS))
    assert relative_error(found, expected) < COSTS["f32"]


@pytest.mark.parametrize("precision", COSTS)
def test_a_precision_costs_what_it_may(tmp_path: Path, library_folder: Path, precision: str) -> None:
    model = CASES["plain"]
    loaded = load(model.write(tmp_path / "tiny.gguf", "F16"), library_folder, precision=precision)
    assert loaded.precision == precision
    assert loaded.backend_name.startswith("cpu (")
    loaded.backend.attach_kv(8)
    found = logits_by_chunks(loaded.backend, TOKENS, (1,) * len(TOKENS))
    assert relative_error(found, llama_logits(model.tensors, model.shape, TOKENS)) < COSTS[precision]


def four_bits(matrix: np.ndarray) -> np.ndarray:
    """Each group of 32 from its smallest to its largest value in 15 equal steps; rows end in zeros."""
    rows, columns = matrix.shape
    groups = np.pad(matrix, ((0, 0), (0, -columns % 32))).reshape(rows, -1, 32)
    low = groups.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
    step = ((groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / 15).astype(np.float16)
    wide = step.astype(np.float32)
    held = np.clip(np.round((groups - low) / np.where(wide > 0, wide, 1)), 0, 15) * wide + low
    return held.reshape(rows, -1)[:, :columns]


def test_a_file_of_16_bits_runs_in_4_bit_groups(tmp_path: Path, library_folder: Path) -> None:
    model = CASES["untied head"]
    path = model.write(tmp_path / "tiny.gguf", "F16")
    loaded = load(path, library_folder, precision="int4", activations="int12")
    assert loaded.precision == "int4"
    loaded.backend.attach_kv(8)
    found = logits_by_chunks(loaded.backend, TOKENS, (1,) * len(TOKENS))
    held = {
        name: four_bits(array.astype(np.float16).astype(np.float32))
        if name.startswith("blk.") and array.ndim == 2
        else array
        for name, array in model.tensors.items()
    }
    assert relative_error(found, llama_logits(held, model.shape, TOKENS)) < COSTS["bf16"]
    assert relative_error(found, llama_logits(model.tensors, model.shape, TOKENS)) > COSTS["bf16"]


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_prompt_in_chunks_ends_with_the_logits_of_the_whole(
    tmp_path: Path, library_folder: Path, kv_dtype: str
) -> None:
    path = CASES["plain"].write(tmp_path / "tiny.gguf", "Q8_0")
    backend = load(path, library_folder, kv_dtype=kv_dtype).backend
    backend.attach_kv(8)
    whole = logits_by_chunks(backend, TOKENS, (40,))
    for chunks in ((7, 1, 32), (39, 1), (1,) * 40):
        assert np.array_equal(logits_by_chunks(backend, TOKENS, chunks)[-1:], whole)


def generate(
    loaded: LoadedBackend, prompts: list[list[int]], params: list[SamplingParams]
) -> list[tuple[int, ...]]:
    loaded.backend.attach_kv(100)
    block_size = loaded.backend.kv_layout.block_size
    scheduler = Scheduler(BlockPool(100, block_size), max_sequences=32, step_tokens=64, context_length=512)
    engine = Engine(make_runner(loaded.backend), scheduler)
    streams = [engine.submit(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    while engine.step():
        scheduler.check_invariants()
    return [token_ids(read_all(stream)[0]) for stream in streams]


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_1"])
def test_a_sequence_gets_exactly_the_same_alone_and_among_32(
    tmp_path: Path, library_folder: Path, type_name: str
) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 273, length).tolist() for length in [1, 63, 64, *rng.integers(2, 150, 29)]]
    params = [
        SamplingParams(
            temperature=(0.0, 0.9, 1.0)[i % 3],
            top_k=(0, 30)[i % 2],
            presence_penalty=(0.0, 0.5)[i // 2 % 2],
            seed=i,
            max_tokens=3 + 5 * i % 17,
        )
        for i in range(32)
    ]
    path = CASES["untied head"].write(tmp_path / "tiny.gguf", type_name)
    together = generate(load(path, library_folder), prompts, params)
    alone = load(path, library_folder, num_threads=1)
    for prompt, each, found in zip(prompts, params, together, strict=True):
        assert generate(alone, [prompt], [each]) == [found]


@pytest.mark.parametrize("type_name", ["F16", "Q4_1"])
def test_prompts_in_slices_of_layers_beside_streams_get_exactly_what_each_gets_alone(
    tmp_path: Path, library_folder: Path, type_name: str
) -> None:
    rng = np.random.default_rng(1)
    model = tiny_model(shape=LlamaShape(num_layers=5), has_head=True)
    path = model.write(tmp_path / "tiny.gguf", type_name)
    prompts = [rng.integers(0, 273, length).tolist() for length in (5, 150, 3, 90, 1, 64)]
    params = [
        SamplingParams(
            temperature=(0.0, 0.9)[i % 2],
            seed=i,
            max_tokens=30,
            num_prompt_logprobs=2 if i == 3 else None,
            wants_hidden_state=i == 1,
        )
        for i in range(6)
    ]
    alone = load(path, library_folder)
    expected = [generate(alone, [prompt], [each])[0] for prompt, each in zip(prompts, params, strict=True)]
    loaded = load(path, library_folder)
    backend = loaded.backend
    assert isinstance(backend, LayeredBackend)
    backend.attach_kv(100)
    scheduler = Scheduler(
        pool_of(backend, 100),
        max_sequences=32,
        step_tokens=64,
        context_length=512,
        budget=HalfOfALayer(64),
        num_layers=backend.num_layers,
    )
    engine = Engine(make_runner(backend), scheduler)
    streams, num_under_way = [], 0
    for prompt, each in zip(prompts, params, strict=True):
        streams.append(engine.submit(prompt, each))
        engine.step()
    while engine.step():
        scheduler.check_invariants()
        num_under_way += bool(scheduler._sliced.chunks)
    assert num_under_way > 10, "hardly anything went in slices"
    read = [read_all(stream) for stream in streams]
    assert [token_ids(events) for events, _ in read] == expected
    assert len(read[3][0][0].prompt_logprobs) == 89
    assert read[1][0][0].hidden_state is not None


class HalfOfALayer(FixedBudget):
    """Beside streams there is room for less than a layer, so that each takes a step."""

    def share(self, streams: Sequence[object], chunks: Sequence[ScheduledSequence]) -> float:
        return 0.1 if streams else super().share((), chunks)


def test_a_damaged_weight_fails_its_sequence_and_not_the_others(tmp_path: Path, library_folder: Path) -> None:
    model = CASES["untied head"]
    tensors = {name: array.copy() for name, array in model.tensors.items()}
    tensors["token_embd.weight"][9] = np.nan
    damaged: TinyModel = replace(model, tensors=tensors)
    backend = load(damaged.write(tmp_path / "x.gguf"), library_folder, precision="f32").backend
    backend.attach_kv(8)
    scheduler = Scheduler(pool_of(backend, 8), max_sequences=4, step_tokens=64, context_length=512)
    engine = Engine(make_runner(backend), scheduler)
    params = SamplingParams(temperature=0.0, max_tokens=3)
    streams = [engine.submit(prompt, params) for prompt in ([1, 9], [3, 4])]
    while engine.step():
        pass
    (_, broken), (tokens, sound) = (read_all(stream) for stream in streams)
    assert broken.reason == "error"
    assert sound.reason == "length"
    assert len(token_ids(tokens)) == 3


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("num_prompt", [63, 64, 65, 100])
def test_choices_of_one_prompt_get_exactly_what_each_gets_alone(
    tmp_path: Path, library_folder: Path, kv_dtype: str, num_prompt: int
) -> None:
    path = CASES["untied head"].write(tmp_path / "tiny.gguf", "Q8_0")
    prompt = np.random.default_rng(1).integers(0, 273, num_prompt).tolist()
    choices = [SamplingParams(temperature=0.9 * (i > 0), seed=i, max_tokens=4 + 3 * i) for i in range(4)]
    loaded = load(path, library_folder, num_threads=1, kv_dtype=kv_dtype)
    loaded.backend.attach_kv(20)
    scheduler = Scheduler(
        pool_of(loaded.backend, 20),
        max_sequences=8,
        step_tokens=64,
        context_length=512,
    )
    engine = Engine(make_runner(loaded.backend), scheduler)
    streams = engine.submit_choices(prompt, choices)
    while engine.step():
        scheduler.check_invariants()
    together = [token_ids(read_all(stream)[0]) for stream in streams]
    assert engine.snapshot().num_prefix_hit_tokens == 3 * (num_prompt - 1)
    alone = load(path, library_folder, num_threads=1, kv_dtype=kv_dtype)
    assert together == [generate(alone, [prompt], [each])[0] for each in choices]


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_preempted_sequences_get_exactly_what_each_gets_alone(
    tmp_path: Path, library_folder: Path, kv_dtype: str
) -> None:
    """Room for about one and a half of four; then with seeds and penalties."""
    path = CASES["untied head"].write(tmp_path / "tiny.gguf", "Q8_0")
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 273, length).tolist() for length in (70, 20, 64, 5)]
    loaded, alone = (load(path, library_folder, num_threads=1, kv_dtype=kv_dtype) for _ in range(2))
    for extra in ({"temperature": 0.0}, {"seed": 3, "presence_penalty": 0.4, "repetition_penalty": 1.2}):
        params = [SamplingParams(max_tokens=100, **extra) for _ in prompts]
        loaded.backend.attach_kv(8)
        scheduler = Scheduler(
            pool_of(loaded.backend, 8),
            max_sequences=8,
            step_tokens=64,
            context_length=512,
        )
        engine = Engine(make_runner(loaded.backend), scheduler)
        streams = [engine.submit(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        while engine.step():
            scheduler.check_invariants()
        assert scheduler.num_preemptions > 0
        ended = [read_all(stream) for stream in streams]
        assert [finish.num_output_tokens for _, finish in ended] == [100] * 4
        for prompt, each, (events, _) in zip(prompts, params, ended, strict=True):
            assert [token_ids(events)] == generate(alone, [prompt], [each])
