"""The GPU backend on a CPU: its graphs replayed by a recorder, compared with the eager backend."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from appliance.engine.batch import Batch, BlockCopy, HostCopy, ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.errors import NotEnoughMemory
from appliance.formats.gguf import read_gguf
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, ForwardInputs
from appliance.runtime.backend import EagerBackend
from appliance.runtime.checkpoint import read_config
from appliance.runtime.cuda import CudaBackend, cuda_kv_layout, independent_copies
from appliance.runtime.decode_graphs import decode_buckets
from appliance.runtime.graph_capture import Replay
from appliance.runtime.inputs import build_inputs
from appliance.runtime.weights import WeightLoader
from kernels.ops import Ops
from kernels.tables import reference_ops
from oracles.tiny_model import CPU, tiny_model
from runtime.graph_recorder import CaptureError, Recorder

NUM_BLOCKS, BLOCK, CONTEXT = 40, 16, 64
MODEL = tiny_model(seed=3)
# Prompts of these lengths; then decode steps of so many of them.
PROMPTS = (3, 16, 1, 20, 7, 31, 5, 15, 12, 33)
STEPS = (1, 3, 10, 4, 2, 8, 9, 5, 1, 10)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, DecoderWeights]:
    with read_gguf(MODEL.write(tmp_path_factory.mktemp("cuda") / "tiny.gguf")) as file:
        architecture, config = read_config(file)
        return config, WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)


def backend_of(
    parts: tuple[ModelConfig, DecoderWeights],
    recorder: Recorder,
    *,
    max_sequences: int = 10,
    ops: Ops | None = None,
    kv_dtype: torch.dtype = torch.float32,
) -> CudaBackend:
    config, weights = parts
    return CudaBackend(
        config,
        weights,
        ops or recorder.ops(),
        cuda_kv_layout(config, kv_dtype),
        max_sequences=max_sequences,
        context_length=CONTEXT,
        new_capture=lambda: recorder,
    )


def inputs_of(sequences: Sequence[ScheduledSequence]) -> ForwardInputs:
    return build_inputs(Batch(sequences=tuple(sequences)), block_size=BLOCK)


def scheduled(index: int, computed: int, num_new: int) -> ScheduledSequence:
    known = [(31 * index + 7 * position) % 273 for position in range(computed + num_new)]
    # No block is shared, and a later sequence has an earlier block.
    blocks = [BlockId(NUM_BLOCKS - 1 - 3 * index - place) for place in range(-(-len(known) // BLOCK))]
    return ScheduledSequence(
        sequence_id=SequenceId(index),
        new_token_ids=tuple(known[computed:]),
        num_computed_tokens=computed,
        block_table=tuple(blocks),
        known_token_ids=known,
        num_prompt_tokens=len(known),
        sampling=SamplingParams(temperature=0.0),
    )


def drive(backend: CudaBackend, eager: EagerBackend) -> float:
    """Run prompts and decode steps on both; return the largest difference of logits and hidden rows."""
    computed = [0] * len(PROMPTS)
    worst = 0.0

    def step(shares: list[tuple[int, int]]) -> None:
        nonlocal worst
        inputs = inputs_of([scheduled(index, computed[index], num_new) for index, num_new in shares])
        found, expected = backend.forward(inputs), eager.forward(inputs)
        for mine, plain in ((found.logits, expected.logits), (found.hidden, expected.hidden)):
            assert mine is not None
            assert plain is not None
            assert mine.shape == plain.shape
            worst = max(worst, (mine - plain).abs().nan_to_num(torch.inf).max().item())
        for index, num_new in shares:
            computed[index] += num_new

    step([(index, length) for index, length in enumerate(PROMPTS)])
    for number, size in enumerate(STEPS):
        chosen = [(number + 3 * place) % len(PROMPTS) for place in range(size)]
        step([(index, 1) for index in chosen])
    return worst


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8], ids=str)
def test_replayed_steps_equal_eager_ones_and_write_the_same_pages(
    parts: tuple[ModelConfig, DecoderWeights], kv_dtype: torch.dtype
) -> None:
    recorder = Recorder()
    backend = backend_of(parts, recorder, kv_dtype=kv_dtype)
    backend.attach_kv(NUM_BLOCKS)
    eager = EagerBackend(*parts, reference_ops(), backend.kv_layout)
    eager.attach_kv(NUM_BLOCKS)
    # INT8 turns a last bit into a step of its own.
    assert drive(backend, eager) < (1e-4 if kv_dtype is torch.float32 else 0.05)
    assert sum(recorder.num_replays) == len(STEPS)
    if kv_dtype is torch.float32:
        for mine, plain in zip(backend._pages, eager._pages, strict=True):
            assert (mine.keys - plain.keys).abs().max() < 1e-5, "padding wrote into a page"
            assert (mine.values - plain.values).abs().max() < 1e-5


def test_the_largest_is_recorded_first_and_a_step_runs_in_the_next_larger_one(
    parts: tuple[ModelConfig, DecoderWeights],
) -> None:
    recorder = Recorder()
    backend = backend_of(parts, recorder)
    backend.attach_kv(NUM_BLOCKS)
    used = []
    for size in range(1, 11):
        before = list(recorder.num_replays)
        backend.forward(inputs_of([scheduled(index, 4, 1) for index in range(size)]))
        used.append([after - b for after, b in zip(recorder.num_replays, before, strict=True)].index(1))
    buckets = [10, 8, 4, 2, 1]
    assert [buckets[index] for index in used] == [1, 2, 4, 4, 8, 8, 8, 8, 10, 10]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20)), (24, (1, 2, 4, 8, 16, 24))],
)
def test_buckets_end_at_the_limit(limit: int, expected: tuple[int, ...]) -> None:
    assert decode_buckets(limit) == expected


def test_what_no_recording_fits_is_run_as_it_is(parts: tuple[ModelConfig, DecoderWeights]) -> None:
    recorder = Recorder()
    backend = backend_of(parts, recorder, max_sequences=2)
    backend.attach_kv(NUM_BLOCKS)
    prompt, three = [scheduled(0, 0, 5)], [scheduled(index, 4, 1) for index in range(3)]
    inside_prompt = [replace(scheduled(0, 4, 1), sampling=None)]
    for sequences in (prompt, three, inside_prompt):
        logits = backend.forward(inputs_of(sequences)).logits
        assert logits is not None
        assert len(logits) == sum(s.sampling is not None for s in sequences)
    assert recorder.num_replays == [0, 0]


@pytest.mark.parametrize("waits", [lambda x: float(x.max()), lambda x: x[x > 0].sum()], ids=["item", "mask"])
def test_a_step_that_waits_for_the_device_is_not_recorded(
    parts: tuple[ModelConfig, DecoderWeights], waits: Callable[[torch.Tensor], torch.Tensor | float]
) -> None:
    recorder = Recorder()

    def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x[rows] + waits(x)

    backend = backend_of(parts, recorder, ops=replace(recorder.ops(), select_rows=select_rows))
    with pytest.raises(CaptureError, match="waits for the device"):
        backend.attach_kv(NUM_BLOCKS)


def test_a_value_that_python_baked_into_a_recording_is_noticed(
    parts: tuple[ModelConfig, DecoderWeights],
) -> None:
    recorder = Recorder()
    calls: list[int] = []

    def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x[rows] + len(calls)

    backend = backend_of(parts, recorder, ops=replace(recorder.ops(), select_rows=select_rows))
    backend.attach_kv(NUM_BLOCKS)
    eager = EagerBackend(*parts, reference_ops(), backend.kv_layout)
    eager.attach_kv(NUM_BLOCKS)
    assert drive(backend, eager) > 1e-2


def test_a_rehearsal_says_what_a_pool_must_leave_and_gives_its_own_back(
    parts: tuple[ModelConfig, DecoderWeights],
) -> None:
    recorder = Recorder()
    backend = backend_of(parts, recorder)
    readings = iter((1_000_000, 400_000))
    pool_bytes = backend.kv_layout.token_bytes * BLOCK * parts[0].num_layers * 2
    taken = backend.rehearse(step_tokens=100, free_bytes=lambda: next(readings))
    assert taken == 600_000 - pool_bytes
    assert len(recorder.num_replays) == len(decode_buckets(10))
    assert not backend.has_graphs
    backend.attach_kv(NUM_BLOCKS)
    assert backend.has_graphs


def test_a_pool_that_does_not_fit_after_all_is_refused_with_a_remedy(
    parts: tuple[ModelConfig, DecoderWeights],
) -> None:
    class Full(Recorder):
        def capture(self, _step: Callable[[], None]) -> Replay:
            raise torch.OutOfMemoryError("CUDA out of memory")

    backend = backend_of(parts, Full())
    with pytest.raises(NotEnoughMemory, match="close the programs that took it, or lower --kv-memory"):
        backend.attach_kv(NUM_BLOCKS)
    with pytest.raises(torch.OutOfMemoryError):  # a rehearsal's caller knows what to lower
        backend.rehearse(step_tokens=64, free_bytes=lambda: 0)


def test_copies_that_touch_each_other_keep_their_order(parts: tuple[ModelConfig, DecoderWeights]) -> None:
    def copy(source: int, target: int) -> BlockCopy:
        return BlockCopy(source=BlockId(source), target=BlockId(target))

    apart = [copy(1, 2), copy(1, 3)]
    assert independent_copies(apart) == [apart]
    assert [len(group) for group in independent_copies([copy(1, 2), copy(2, 3), copy(4, 1), copy(5, 1)])] == [
        1, 2, 1,
    ]  # fmt: skip
    assert [len(group) for group in independent_copies([copy(1, 2), copy(3, 1)])] == [1, 1]
    backend = backend_of(parts, Recorder())
    backend.attach_kv(NUM_BLOCKS)
    with torch.inference_mode():
        backend._pages[1].keys[1] = 5.0
    backend.copy_blocks([copy(1, 2), copy(2, 3)])
    assert backend._pages[1].keys[3].eq(5.0).all()


def test_blocks_that_waited_in_main_memory_serve_the_same_step(
    parts: tuple[ModelConfig, DecoderWeights],
) -> None:
    backend = backend_of(parts, Recorder())
    backend.attach_kv(NUM_BLOCKS)
    assert backend.attach_host(2) > 0
    prompt, following = scheduled(0, 0, 20), scheduled(0, 20, 1)
    backend.forward(inputs_of([prompt]))
    expected = _logits(backend, following)
    blocks = prompt.block_table
    backend.swap_blocks([HostCopy(block=block, place=i) for i, block in enumerate(blocks)], [])
    elsewhere = (BlockId(1), BlockId(2))
    backend.swap_blocks([], [HostCopy(block=block, place=i) for i, block in enumerate(elsewhere)])
    assert torch.equal(_logits(backend, replace(following, block_table=elsewhere)), expected)


def _logits(backend: CudaBackend, sequence: ScheduledSequence) -> torch.Tensor:
    logits = backend.forward(inputs_of([sequence])).logits
    assert logits is not None
    return logits.clone()
