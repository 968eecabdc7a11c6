"""Compiles grammars for one model's tokens and follows them. The only file that knows llguidance's matcher.

Compiling may take up to a few hundred milliseconds and releases the interpreter lock: call it off the event
loop. Masks take some microseconds once the parts of a grammar have been met.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from appliance.engine.constraint import ConstraintError
from appliance.errors import InvalidRequest
from appliance.text.grammar import Grammar
from appliance.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MAX_SOURCE_CHARS = 512 * 1024
_MAX_CACHED = 64
_BITS = 32
_LONGEST_ERROR = 400  # characters of the compiler's message that a client gets to see


class TokenConstraint:
    """Implements the engine's Constraint for one sequence."""

    def __init__(self, matcher: "LLMatcher", *, num_mask_words: int) -> None:
        self._matcher = matcher
        self._num_mask_words = num_mask_words

    @property
    def is_done(self) -> bool:
        return bool(self._matcher.is_stopped())

    @property
    def num_mask_words(self) -> int:
        return self._num_mask_words

    def advance(self, token_ids: Sequence[int]) -> None:
        if not self._matcher.consume_tokens(list(token_ids)):
            raise self._error()

    def forced(self) -> tuple[int, ...]:
        return tuple(self._matcher.compute_ff_tokens())

    def fill_mask(self, address: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(address, self._num_mask_words * _BITS // 8)
        if self._matcher.is_error():
            raise self._error()

    def _error(self) -> ConstraintError:
        reason = self._matcher.get_error().splitlines()[:1]
        return ConstraintError(f"the grammar could not be followed: {''.join(reason)[:_LONGEST_ERROR]}")


class CompiledGrammar:
    """A grammar ready for any number of sequences."""

    def __init__(self, matcher: "LLMatcher", *, num_mask_words: int) -> None:
        self._matcher = matcher
        self._num_mask_words = num_mask_words

    def start(self) -> TokenConstraint:
        """A constraint for one new sequence."""
        return TokenConstraint(self._matcher.deep_copy(), num_mask_words=self._num_mask_words)


class ConstraintCompiler:
    """Compiles for one tokenizer; keeps what it compiled last. Any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def cached(self, grammar: Grammar) -> CompiledGrammar | None:
        """The grammar where it was compiled before."""
        source = grammar.source
        with self._lock:
            if source in self._cache:
                self._cache.move_to_end(source)
            return self._cache.get(source)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises InvalidRequest naming the field where the grammar is too large or cannot be honoured."""
        found = self.cached(grammar)
        if found is not None:
            return found
        compiled = self._compiled(grammar)
        with self._lock:
            self._cache[grammar.source] = compiled
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        from llguidance import LLMatcher

        source = grammar.source
        if len(source) > _MAX_SOURCE_CHARS:
            raise InvalidRequest(
                f"'{grammar.field}' makes a grammar of {len(source)} characters; the most is "
                f"{_MAX_SOURCE_CHARS}",
                param=grammar.field,
            )
        matcher = LLMatcher(self._ll_tokenizer, source, log_level=0, limits=_limits())
        # The first mask is by far the slowest, and finds grammars that allow nothing.
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            reason = matcher.get_error()[:_LONGEST_ERROR]
            raise InvalidRequest(f"'{grammar.field}' cannot be honoured: {reason}", param=grammar.field)
        if not any(mask):
            raise InvalidRequest(f"'{grammar.field}' allows no answer at all", param=grammar.field)
        return CompiledGrammar(matcher, num_mask_words=-(-self._tokenizer.vocab_size // _BITS))

    @cached_property
    def _ll_tokenizer(self) -> "LLTokenizer":
        """Made at the first grammar: it takes a few tenths of a second."""
        from llguidance import LLTokenizer, TokenizerWrapper

        tokenizer = self._tokenizer
        stops = sorted(tokenizer.stop_token_ids) or [tokenizer.vocab_size - 1]
        return LLTokenizer(TokenizerWrapper(_TokenTable(tokenizer, stops[0])), eos_token=stops)


class _TokenTable:
    """A vocabulary in the shape that llguidance reads. Control tokens have names that no text spells."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        ids = range(tokenizer.vocab_size)
        self.special_token_ids = [token_id for token_id in ids if tokenizer.is_control(token_id)]
        names = {token_id: b"<|control %d|>" % token_id for token_id in self.special_token_ids}
        self.tokens = [names.get(token_id) or tokenizer.token_bytes(token_id) for token_id in ids]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False, add_bos=False)


def _limits() -> "LLParserLimits":
    """About a second of compiling at most; messages without the parser's inner state."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=5_000_000,
        step_lexer_fuel=1_000_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )
