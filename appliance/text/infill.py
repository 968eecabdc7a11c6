"""Prompts that ask for the text between two others, for models trained on it. Knows token names only."""

from appliance.text.tokenizer import Tokenizer

# What stands before the prefix, before the suffix, and before the wanted middle.
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def infill_token_ids(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int] | None:
    """Return the prompt, None where the model has no tokens for it. Texts never become control tokens."""
    ids = tokenizer.control_ids
    for before_prefix, before_suffix, before_middle in _MARKERS:
        if before_prefix in ids and before_suffix in ids and before_middle in ids:
            segments: list[str | int] = [
                ids[before_prefix],
                prefix,
                ids[before_suffix],
                suffix,
                ids[before_middle],
            ]
            return tokenizer.with_bos(tokenizer.encode_segments(segments))
    return None
