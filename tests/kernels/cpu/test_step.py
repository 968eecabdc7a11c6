"""Whole steps of small random networks against a plain float64 forward pass, and exact batch invariance."""

import dataclasses
import itertools

import numpy as np
import pytest

from kernels.cpu.abi import MIXED_BITS, GateActivation, HeadNorm, Kind, Placement, Source
from kernels.cpu.library import NativeLibrary
from kernels.cpu.pages import allocate_pages
from kernels.cpu.structs import SomeLayers

VARIANTS = {
    "llama": {},
    "untied": {"has_head": True, "rotary": 8},
    "no-rope": {"rotary": 0},
    "qwen2": {"has_bias": True, "num_kv_heads": 6},
    "qwen3": {"qk_norm": HeadNorm.HEAD, "head_size": 32},
    "olmo2": {"placement": Placement.POST, "qk_norm": HeadNorm.FULL},
    "gemma2": {
        "placement": Placement.BOTH,
        "activation": GateActivation.GELU_TANH,
        "windows": (9, None),
        "softcap": 3.0,
        "logit_softcap": 2.0,
        "embedding_scale": 3.0,
        "num_kv_heads": 1,
    },
    "granite": {"residual_scale": 0.3, "logit_scale": 0.25, "hidden": 100, "ffn": 90},
}


def relative_error(out, expected):
    return float(np.abs(out - expected).mean() / np.abs(expected).mean())


def random_tokens(rng, shape, count):
    return rng.integers(0, shape.vocab, count)


@pytest.mark.parametrize("variant", VARIANTS)
def test_step_equals_the_plain_network(library: NativeLibrary, rig, variant):
    network = rig.network(rig.shape(**VARIANTS[variant]))
    tokens = random_tokens(np.random.default_rng(1), network.shape, 41)
    expected = network.reference(tokens)
    for level in library.levels:
        with network.native(library, level=level, num_threads=2, is_rough=True) as model:
            model.bind_kv(rig.pages(network.shape, 5))
            table = [4, 0, 2]
            chunks = [
                rig.batch([(tokens[a:b], a, table)], prompt_lens=[33])
                for a, b in itertools.pairwise((0, 30, 31, 34, 41))
            ]
            logits = np.concatenate([rig.logits(model, chunk) for chunk in chunks])
        assert relative_error(logits, expected) < 0.01, level


@pytest.mark.parametrize(
    ("source", "kind", "is_int8", "limit"),
    [
        (Source.Q4_1, None, False, 0.05),
        (Source.Q4_0, None, False, 0.05),
        (Source.Q8_0, None, True, 0.05),
        (Source.F32, Kind.CHANNEL8, False, 0.05),
        (Source.F32, Kind.BF16, True, 0.03),
    ],
)
@pytest.mark.parametrize("num_prompt_tokens", [0, 29])
def test_quantized_step_is_near_the_plain_network(
    library: NativeLibrary, rig, source, kind, is_int8, limit, num_prompt_tokens
):
    network = rig.network(rig.shape(source=source, kind=kind, hidden=128, head_size=32))
    tokens = random_tokens(np.random.default_rng(2), network.shape, 29)
    for level in library.levels:
        with network.native(library, level=level, is_rough=True) as model:
            model.bind_kv(rig.pages(network.shape, 2, 16, is_int8))
            batch = rig.batch([(tokens, 0, [1, 0])], prompt_lens=[num_prompt_tokens])
            logits = rig.logits(model, batch)
        assert relative_error(logits, network.reference(tokens)) < limit, level


def test_rough_rows_are_mixed_where_there_is_no_tile_unit(library: NativeLibrary, rig):
    network = rig.network(rig.shape(source=Source.Q4_1, kind=None, hidden=128, ffn=192, head_size=32))
    tokens = random_tokens(np.random.default_rng(12), network.shape, 30)
    forms = {
        "mixed": {"activation_bits": MIXED_BITS},
        "rough": {"activation_bits": 12, "is_rough": True},
        "exact": {"activation_bits": 12},
    }
    for level in library.levels:
        if level.endswith("amx"):
            continue
        hidden = {}
        for name, settings in forms.items():
            hidden[name] = np.full((30, network.shape.hidden), np.nan, np.float32)
            with network.native(library, level=level, **settings) as model:
                model.bind_kv(rig.pages(network.shape, 2))
                batch = rig.batch([(tokens, 0, [1, 0])], prompt_lens=[17])
                every_row = dataclasses.replace(batch, logit_rows=np.arange(30, dtype=np.int32))
                model.step(every_row, hidden=hidden[name])
        assert (hidden["rough"] == hidden["mixed"]).all(), level
        assert (hidden["rough"] != hidden["exact"]).any(axis=1).all(), level


# Where each prompt ends: inside, at the edges of and beyond chunks. What comes after is generated.
PROMPT_LENS = {"a": 131, "b": 52, "c": 0}


def run_schedule(rig, model, shape, schedule, tables, tokens, is_int8):
    """Runs {sequence: chunk ends} with all sequences side by side; each sequence's logits, row by row."""
    model.bind_kv(rig.pages(shape, 24, 16, is_int8))
    done, rows = dict.fromkeys(schedule, 0), {name: [] for name in schedule}
    for round_ in range(max(len(ends) for ends in schedule.values())):
        due = [name for name, ends in schedule.items() if round_ < len(ends)]
        pieces = [(tokens[n][done[n] : schedule[n][round_]], done[n], tables[n]) for n in due]
        logits = rig.logits(model, rig.batch(pieces, prompt_lens=[PROMPT_LENS[name] for name in due]))
        for name, piece in zip(due, pieces, strict=True):
            rows[name].append(logits[: len(piece[0])])
            logits = logits[len(piece[0]) :]
            done[name] = schedule[name][round_]
    return {name: np.concatenate(parts) for name, parts in rows.items()}


@pytest.mark.parametrize(
    ("source", "kind", "is_int8", "activation_bits", "head_size"),
    [
        (Source.Q4_1, None, False, MIXED_BITS, 32),
        (Source.Q4_0, None, False, MIXED_BITS, 80),
        (Source.Q4_1, None, True, 8, 32),
        (Source.Q8_0, None, False, 12, 64),
        (Source.Q4_1, None, False, 12, 64),
        (Source.Q8_0, None, True, MIXED_BITS, 32),
        (Source.F32, Kind.CHANNEL8, False, MIXED_BITS, 16),
        (Source.F32, Kind.BF16, False, MIXED_BITS, 32),
    ],
)
def test_logits_depend_on_neither_neighbours_nor_chunks_nor_threads(
    library: NativeLibrary, rig, source, kind, is_int8, activation_bits, head_size
):
    shape = rig.shape(source=source, kind=kind, hidden=128, ffn=1216, head_size=head_size, windows=(50, None))
    network = rig.network(shape)
    rng = np.random.default_rng(3)
    tokens = {name: random_tokens(rng, network.shape, 150) for name in "abc"}
    tables = {
        "a": [3, 9, 1, 0, 7, 2, 4, 5, 6, 8],
        "b": [20, 19, 18, 17, 16, 15, 14, 13, 12, 11],
        "c": [22, 21, 10, 23],
    }
    alone = {"a": [1, 130, 131, 132, 133, 139, 150]}
    crowd = {"a": [77, 78, 145, 148, 149, 150], "b": [2, 3, 50, 51, 52, 53, 60], "c": [64]}
    for level in library.levels:
        results = []
        for schedule, threads in ((alone, 1), (alone, 2), (crowd, 1), (crowd, 3), ({"a": [150]}, 2)):
            settings = {"activation_bits": activation_bits, "is_rough": True}
            with network.native(library, level=level, num_threads=threads, **settings) as model:
                results.append(
                    run_schedule(rig, model, network.shape, schedule, tables, tokens, is_int8)["a"]
                )
        assert all((result == results[0]).all() for result in results), level


@pytest.mark.parametrize("is_int8", [False, True])
def test_where_a_block_lies_changes_nothing(library: NativeLibrary, rig, is_int8):
    network = rig.network(rig.shape(head_size=32))
    tokens = random_tokens(np.random.default_rng(8), network.shape, 70)
    chunks = [
        rig.batch([(tokens[a:b], a, [3, 0, 4, 2, 1])], prompt_lens=[50]) for a, b in ((0, 40), (40, 70))
    ]
    apart = rig.pages(network.shape, 5, 16, is_int8)
    together = allocate_pages(apart[0].layout, 5, network.shape.num_layers)
    for level in library.levels:
        with network.native(library, level=level, num_threads=2, is_rough=True) as model:
            logits = []
            for pages in (apart, together):
                model.bind_kv(pages)
                logits.append(np.concatenate([rig.logits(model, chunk) for chunk in chunks]))
        assert (logits[0] == logits[1]).all(), level


def test_best_tokens_agree_with_the_logits(library: NativeLibrary, rig):
    network = rig.network(rig.shape(has_head=True))
    tokens = random_tokens(np.random.default_rng(4), network.shape, 12)
    with network.native(library, num_threads=2) as model:
        model.bind_kv(rig.pages(network.shape, 1))
        batch = rig.batch([(tokens, 0, [0])])
        logits = np.full((12, network.shape.vocab), np.nan, np.float32)
        hidden = np.full((12, network.shape.hidden), np.nan, np.float32)
        best = model.step(batch, top_k=5, logits=logits, hidden=hidden)
        assert (best.ids == np.argsort(-logits, axis=1, kind="stable")[:, :5]).all()
        assert (best.values == np.take_along_axis(logits, best.ids, axis=1)).all()
        assert np.isfinite(hidden).all()
        assert (model.step(batch).ids[:, 0] == best.ids[:, 0]).all()


def test_a_step_without_logit_rows_only_fills_pages(library: NativeLibrary, rig):
    network = rig.network(rig.shape())
    tokens = random_tokens(np.random.default_rng(5), network.shape, 16)
    whole, rest = (rig.batch([piece]) for piece in ((tokens, 0, [0]), (tokens[9:], 9, [0])))
    silent = rig.batch([(tokens[:9], 0, [0])])
    silent = type(silent)(
        **{n: getattr(silent, n) for n in silent.__slots__ if n != "logit_rows"}, logit_rows=silent.tokens[:0]
    )
    with network.native(library) as model:
        model.bind_kv(rig.pages(network.shape, 1))
        expected = rig.logits(model, whole)
        model.bind_kv(rig.pages(network.shape, 1))
        assert model.step(silent).ids.shape == (0, 1)
        assert (rig.logits(model, rest) == expected[9:]).all()


# Rows of the step below: of each sequence some, near and far from each other, twice, and in no order.
READ_ROWS = {
    "none": [],
    "last": [299, 300],
    "first": [0],
    "near": [63, 0, 64, 298],
    "far": [170, 3, 234, 235, 299, 235],
    "generated": [300, 342],
    "all": [*range(343)],
}


@pytest.mark.parametrize(
    ("variant", "source", "is_int8"),
    [
        ("llama", Source.Q4_1, False),
        ("qwen2", Source.Q8_0, True),
        ("gemma2", Source.Q4_0, False),
        ("olmo2", Source.Q4_1, False),
    ],
)
def test_rows_that_nobody_reads_change_no_other(library: NativeLibrary, rig, variant, source, is_int8):
    shape = rig.shape(**VARIANTS[variant] | {"source": source, "kind": None, "hidden": 128, "ffn": 192})
    network, rng = rig.network(shape), np.random.default_rng(9)
    tokens = {name: random_tokens(rng, shape, 320) for name in "abc"}
    tables = {"a": [*range(20)], "b": [*range(20, 24)], "c": [24, 25]}
    before = rig.batch([(tokens["b"][:9], 0, tables["b"]), (tokens["c"][:17], 0, tables["c"])])
    pieces = [("a", 0, 300), ("c", 17, 18), ("b", 9, 51)]
    step = rig.batch([(tokens[n][a:b], a, tables[n]) for n, a, b in pieces], prompt_lens=[310, 17, 40])
    after = rig.batch([(tokens[n][b : b + 1], b, tables[n]) for n, _, b in pieces])
    for level, activation_bits in itertools.product(library.levels, (12, MIXED_BITS)):
        settings = {"activation_bits": activation_bits, "is_rough": True, "num_threads": 2}
        with network.native(library, level=level, **settings) as model:
            found = {}
            for name, rows in READ_ROWS.items():
                model.bind_kv(rig.pages(shape, 26, 16, is_int8))
                rig.logits(model, before)
                read = dataclasses.replace(step, logit_rows=np.asarray(rows, np.int32))
                found[name] = rig.logits(model, read), rig.logits(model, after)
        for name, rows in READ_ROWS.items():
            assert (found[name][0] == found["all"][0][rows]).all(), (level, name)
            assert (found[name][1] == found["all"][1]).all(), (level, name)


@pytest.mark.parametrize("is_int8", [False, True])
def test_a_generated_token_that_nobody_reads_is_written(library: NativeLibrary, rig, is_int8):
    network = rig.network(rig.shape())
    tokens = random_tokens(np.random.default_rng(10), network.shape, 20)
    first, second, third = (
        rig.batch([(tokens[i : i + 1], i, [0]), (tokens[i + 9 : i + 10], i, [1])]) for i in range(3)
    )
    for level in library.levels:
        with network.native(library, level=level) as model:
            found = []
            for rows in ([], [1], [0, 1]):
                model.bind_kv(rig.pages(network.shape, 2, 16, is_int8))
                for batch in (first, second):
                    model.step(dataclasses.replace(batch, logit_rows=np.asarray(rows, np.int32)))
                found.append(rig.logits(model, third))
        assert all((logits == found[0]).all() for logits in found), level


@pytest.mark.parametrize("variant", ["llama", "gemma2", "olmo2"])
def test_a_step_in_slices_of_layers_beside_other_steps_equals_the_whole(library, rig, variant):
    windows = VARIANTS[variant].get("windows", (None, None)) * 3
    network = rig.network(rig.shape(**VARIANTS[variant] | {"num_layers": 6, "windows": windows}))
    rng = np.random.default_rng(6)
    tokens, beside = random_tokens(rng, network.shape, 40), random_tokens(rng, network.shape, 12)
    first, second = (
        rig.batch([(tokens[a:b], a, [1, 0, 3])], prompt_lens=[40]) for a, b in ((0, 23), (23, 40))
    )
    other = [rig.batch([(beside[i : i + 1], i, [2])]) for i in range(12)]
    for level in library.levels:
        with network.native(library, level=level, num_threads=2, is_rough=True) as model:
            model.bind_kv(rig.pages(network.shape, 4))
            expected = np.concatenate([rig.logits(model, first), rig.logits(model, second)])
            expected_beside = [rig.logits(model, batch) for batch in other]
            model.bind_kv(rig.pages(network.shape, 4))
            steps, logits = iter(zip(other, expected_beside, strict=True)), []
            for whole, cuts in ((first, (0, 1, 3, 6)), (second, (0, 4, 5, 6))):
                between = np.full((whole.tokens.size, network.shape.hidden), np.nan, np.float32)
                for begin, end in itertools.pairwise(cuts):
                    layers = SomeLayers(begin, end, between)
                    if end == 6:
                        logits.append(rig.logits(model, whole, layers=layers))
                    else:
                        model.step(dataclasses.replace(whole, logit_rows=whole.tokens[:0]), layers=layers)
                    step, right = next(steps)
                    assert (rig.logits(model, step) == right).all()
        assert (np.concatenate(logits) == expected).all(), level
