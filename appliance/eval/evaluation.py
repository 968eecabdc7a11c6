"""Measures one loaded model against another on the built-in texts. Loads nothing and stores nothing."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from appliance.eval.divergence import Divergence, joined
from appliance.eval.logit_reader import WINDOW, LogitReader
from appliance.eval.repetition import is_looping
from appliance.eval.texts import PROMPTS, domains, long_text
from appliance.quality import LONG_CONTEXT, Quality
from appliance.runtime.loading import LoadedBackend

Encode = Callable[[str], list[int]]
Report = Callable[[str], None]
# Tokens of a greedy answer: long enough for a paragraph to come round.
_ANSWER_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A loaded model and the words it was asked for with."""

    loaded: LoadedBackend
    variant: str
    activations: str = "auto"


def evaluate(
    model: str,
    found: Measured,
    reference: Measured,
    encode: Encode,
    report: Report,
    *,
    long_context: int | None = None,
) -> Quality:
    """Run both over every text, a window at a time, and let both answer the prompts.

    With `long_context` also over one text of so many tokens in one context.
    """
    reader = LogitReader(found.loaded.backend, long_context or WINDOW)
    exact = LogitReader(reference.loaded.backend, long_context or WINDOW)
    parts = {}
    for name, text in domains().items():
        report(f"measuring {name}")
        parts[name] = compare(reader, exact, encode(text))
    if long_context:
        report(f"measuring a context of {long_context} tokens")
        parts[LONG_CONTEXT] = compare_late(reader, exact, long_tokens(encode, long_context))
    report("looking for loops")
    prompts = [encode(prompt) for prompt in PROMPTS]
    return Quality(
        model=model,
        variant=found.variant,
        held_as=found.loaded.precision,
        activations=found.activations,
        backend=found.loaded.backend_name,
        kv_dtype=found.loaded.kv_dtype,
        against=reference.variant,
        weights_bytes=found.loaded.weights_bytes,
        reference_bytes=reference.loaded.weights_bytes,
        overall=joined(parts.values()).summary(),
        domains={name: part.summary() for name, part in parts.items()},
        num_prompts=len(prompts),
        num_loops=_num_loops(reader, prompts),
        reference_loops=_num_loops(exact, prompts),
        measured_s=time.time(),
    )


def compare(found: LogitReader, reference: LogitReader, token_ids: Sequence[int]) -> Divergence:
    """Both models' foretelling of one text, in windows of a fresh context each."""
    divergence = Divergence()
    for window in _windows(token_ids):
        _compare_window(found, reference, window, divergence)
    return divergence


def compare_late(found: LogitReader, reference: LogitReader, token_ids: Sequence[int]) -> Divergence:
    """Both models' foretelling of the second half of one text, in one context."""
    divergence = Divergence()
    _compare_window(found, reference, token_ids, divergence, first=len(token_ids) // 2)
    return divergence


def long_tokens(encode: Encode, num_tokens: int) -> list[int]:
    """The first tokens of a text that is long enough."""
    num_chars = 4 * num_tokens
    while len(token_ids := encode(long_text(num_chars))) < num_tokens:
        num_chars *= 2
    return token_ids[:num_tokens]


@torch.inference_mode()
def _compare_window(
    found: LogitReader,
    reference: LogitReader,
    window: Sequence[int],
    divergence: Divergence,
    first: int = 0,
) -> None:
    """Add what both say after each token from the `first` on."""
    next_ids, start = torch.tensor(window[1:]), 0
    for logits, exact in zip(found.read(window[:-1]), reference.read(window[:-1]), strict=True):
        skipped = min(max(first - start, 0), len(logits))
        divergence.add(
            logits[skipped:].cpu(), exact[skipped:].cpu(), next_ids[start + skipped : start + len(logits)]
        )
        start += len(logits)


def _windows(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut into WINDOW tokens each; every one begins with the text's first, which may be a mark for that."""
    first, rest = token_ids[0], token_ids[1:]
    for start in range(0, len(rest), WINDOW - 1):
        yield [first, *rest[start : start + WINDOW - 1]]


@torch.inference_mode()
def _num_loops(reader: LogitReader, prompts: Sequence[Sequence[int]]) -> int:
    return sum(is_looping(reader.continue_greedily(prompt, _ANSWER_TOKENS)) for prompt in prompts)
