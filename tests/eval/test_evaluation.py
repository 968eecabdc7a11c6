"""Measuring one model against another: the numbers against plain formulas, and a model against itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.eval.divergence import Divergence, joined
from appliance.eval.evaluation import compare, compare_late, long_tokens
from appliance.eval.logit_reader import CHUNK, WINDOW, LogitReader
from appliance.eval.repetition import is_looping
from appliance.eval.texts import domains
from oracles.llama import llama_logits
from oracles.tiny_model import load_eager, tiny_model

TOKENS = np.random.default_rng(3).integers(0, 273, CHUNK + 7).tolist()


def test_logits_of_a_text_are_those_of_the_formulas_chunk_after_chunk(tmp_path: Path) -> None:
    model = tiny_model()
    reader = LogitReader(load_eager(model.write(tmp_path / "tiny.gguf")))
    found = np.concatenate([chunk.numpy() for chunk in reader.read(TOKENS)])
    np.testing.assert_allclose(found, llama_logits(model.tensors, model.shape, TOKENS), atol=2e-3)


def test_a_greedy_answer_is_the_likeliest_token_each_time(tmp_path: Path) -> None:
    model = tiny_model()
    reader = LogitReader(load_eager(model.write(tmp_path / "tiny.gguf")))
    known = TOKENS[:5]
    for _ in range(4):
        known = [*known, int(llama_logits(model.tensors, model.shape, known)[-1].argmax())]
    assert reader.continue_greedily(TOKENS[:5], 4) == known[5:]


def test_a_model_differs_from_itself_in_nothing(tmp_path: Path) -> None:
    reader = LogitReader(load_eager(tiny_model().write(tmp_path / "tiny.gguf")))
    summary = compare(reader, reader, TOKENS).summary()
    assert summary.num_tokens == len(TOKENS) - 1
    assert summary.perplexity_rise == 0
    assert summary.mean_kl == pytest.approx(0, abs=1e-12)
    assert summary.top1_agreement == 1


def test_text_past_a_window_is_measured_whole(tmp_path: Path) -> None:
    reader = LogitReader(load_eager(tiny_model().write(tmp_path / "tiny.gguf")))
    ids = np.random.default_rng(4).integers(0, 273, WINDOW + 100).tolist()
    assert compare(reader, reader, ids).summary().num_tokens == WINDOW + 99


def test_the_second_half_of_a_long_text_is_measured_in_one_context(tmp_path: Path) -> None:
    model = tiny_model()
    backend = load_eager(model.write(tmp_path / "tiny.gguf"))
    ids = np.random.default_rng(5).integers(0, 273, 3 * CHUNK + 1).tolist()
    reader = LogitReader(backend, len(ids))
    late = compare_late(reader, reader, ids)
    first = len(ids) // 2
    assert late.summary().num_tokens == len(ids) - 1 - first
    logits = torch.tensor(llama_logits(model.tensors, model.shape, ids[:-1])[first:])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[first + 1 :]))
    assert late.summary().perplexity == pytest.approx(float(expected.exp()), rel=1e-2)


def test_a_long_text_has_the_tokens_asked_for() -> None:
    assert len(long_tokens(lambda text: list(text.encode()[::9]), 5000)) == 5000


def test_figures_are_those_of_their_definitions() -> None:
    found = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]])
    exact = torch.tensor([[1.5, 1.0, 0.0], [0.0, 1.0, 3.0]])
    part = Divergence()
    part.add(found, exact, torch.tensor([0, 2]))
    p, q = torch.softmax(exact[0], 0), torch.softmax(found[0], 0)
    summary = joined([part]).summary()
    expected_kl = float((p * (p / q).log()).sum())
    assert summary.mean_kl == pytest.approx(expected_kl / 2, rel=1e-5)
    assert summary.p99_kl == pytest.approx(expected_kl, rel=1e-5)
    assert summary.top1_agreement == 0.5
    third = torch.softmax(found[1], 0)[2]
    assert summary.perplexity == pytest.approx(float((q[0] * third) ** -0.5), rel=1e-5)


@pytest.mark.parametrize("piece", [[7], [7, 8], [1, 2, 3, 4, 5]])
def test_a_piece_that_goes_round_is_a_loop(piece: list[int]) -> None:
    assert is_looping([50, 51, 52, *(piece * 12)])


def test_style_is_no_loop() -> None:
    assert not is_looping([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 3, 6])
    assert not is_looping([5, 6, 5, 6, 5, 6])
    assert not is_looping([])


def test_the_texts_are_the_same_every_time_and_about_as_long() -> None:
    assert domains() == domains()
    assert all(2_000 < len(text) < 6_000 for text in domains().values())
