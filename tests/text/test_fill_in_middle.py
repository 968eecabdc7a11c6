"""Prompts around a gap: the model's own markers, in its order; none where it has none."""

from pathlib import Path

from appliance.formats.gguf import read_gguf
from appliance.text.fill_in_middle import can_fill_in, fill_in_prompt
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.tokenizer import Tokenizer
from formats.gguf_builder import TINY_CONTROL, tiny_vocabulary, write_gguf


def tokenizer_with(folder: Path, *markers: str) -> Tokenizer:
    metadata = tiny_vocabulary(control=(*TINY_CONTROL, *markers))
    with read_gguf(write_gguf(folder / "v.gguf", metadata, {})) as file:
        return tokenizer_from_gguf(file)


def test_a_prompt_around_a_gap(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    assert can_fill_in(tokenizer)
    prompt = fill_in_prompt(tokenizer, "the <|fim_middle|>", "world")
    assert prompt is not None
    assert tokenizer.spelt(prompt) == "<|fim_prefix|>the <|fim_middle|><|fim_suffix|>world<|fim_middle|>"
    assert prompt.count(tokenizer.control_ids["<|fim_middle|>"]) == 1


def test_a_model_without_all_markers_fills_in_nothing(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "<|fim_prefix|>", "<|fim_suffix|>")
    assert not can_fill_in(tokenizer)
    assert fill_in_prompt(tokenizer, "a", "b") is None
