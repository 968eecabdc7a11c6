"""How text is cut into words before byte-pair merging, by the name a GGUF file gives. Knows no vocabulary.

The patterns are those published with each model family's tokenizer. `\\p{..}` classes and look-ahead are
Oniguruma's, which the tokenizers library uses.
"""

from dataclasses import dataclass

from appliance.errors import UnsupportedModel

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_OTHER}|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER}|{_SPACES}"
)
_DEEPSEEK3 = (
    rf"{_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """Splits applied in turn, each within the pieces of the one before; every match is a piece of its own."""

    patterns: tuple[str, ...]
    normalizes_to_nfc: bool = False
    ignores_merges: bool = False  # a word that is a token needs no merges
    adds_bos: bool = False  # when the file does not say


_PLAIN = PreTokenizer(patterns=(_GPT2,))
_PLAIN_NFC = PreTokenizer(patterns=(_GPT2,), normalizes_to_nfc=True)
_DIGITS = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer(patterns=(_CL100K,), ignores_merges=True, adds_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _PLAIN,
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "mpt": _PLAIN_NFC,
    "olmo": _PLAIN_NFC,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": PreTokenizer(patterns=(r"\p{N}", _GPT2), normalizes_to_nfc=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": PreTokenizer(patterns=(_CL100K,), ignores_merges=True),
    "dbrx": PreTokenizer(patterns=(_CL100K,)),
    "glm4": PreTokenizer(patterns=(_CL100K,)),
    "chatglm-bpe": PreTokenizer(patterns=(_CL100K,)),
    "qwen2": PreTokenizer(patterns=(_QWEN2,), normalizes_to_nfc=True),
    "deepseek-r1-qwen": PreTokenizer(patterns=(_QWEN2,), normalizes_to_nfc=True),
    "qwen35": PreTokenizer(patterns=(_QWEN35,), normalizes_to_nfc=True),
    "gpt-4o": PreTokenizer(patterns=(_O200K,)),
    "llama4": PreTokenizer(patterns=(_O200K,)),
    "tekken": PreTokenizer(patterns=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "deepseek-v3": PreTokenizer(patterns=(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of that name. Raises UnsupportedModel listing the known names."""
    pre_tokenizer = PRE_TOKENIZERS.get(name)
    if pre_tokenizer is None:
        raise UnsupportedModel(
            f"the pre-tokenizer '{name}' is not supported yet; known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return pre_tokenizer
