"""The prompt for text between a prefix and a suffix, for models trained on it. Knows tokens only."""

from appliance.text.tokenizer import Tokenizer

# Before the prefix, before the suffix, before the answer: as model families name them.
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)


def can_fill_in(tokenizer: Tokenizer) -> bool:
    return _marker_ids(tokenizer) is not None


def fill_in_prompt(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int] | None:
    """Return the token ids of the prompt; None where the model knows no such prompts."""
    markers = _marker_ids(tokenizer)
    if markers is None:
        return None
    before, hole, answer = markers
    return tokenizer.with_bos(tokenizer.encode_segments([before, prefix, hole, suffix, answer]))


def _marker_ids(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    ids = tokenizer.control_ids
    for before, hole, answer in _MARKERS:
        if before in ids and hole in ids and answer in ids:
            return ids[before], ids[hole], ids[answer]
    return None
