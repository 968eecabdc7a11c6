"""Builds one choice's text token by token: whole characters only, never part of a stop string.

Knows the detokenizer and the stop matcher; knows no engine.
"""

from dataclasses import dataclass

from appliance.engine.batch import TokenLogprobs
from appliance.text.detokenizer import Detokenizer
from appliance.text.stop_strings import StopMatcher
from appliance.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetail:
    """One output token for a client that asked for log-probabilities. `offset` in characters of the text."""

    token_id: int
    offset: int
    logprobs: TokenLogprobs


class OutputText:
    """Text so far, and what of it may be shown. Details of tokens wait until their text is shown."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self.is_stopped = False
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_matcher = StopMatcher(stop) if stop else None
        self._num_chars = 0  # decoded
        self._num_shown = 0
        self._held: list[TokenDetail] = []

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> tuple[str, tuple[TokenDetail, ...]]:
        """Take one token; return the text and the token details that may be shown now."""
        if logprobs is not None:
            self._held.append(TokenDetail(token_id=token_id, offset=self._num_chars, logprobs=logprobs))
        return self._show(self._detokenizer.push(token_id), is_last=False)

    def flush(self) -> tuple[str, tuple[TokenDetail, ...]]:
        """Return what was held back in the hope of more. Call once, at the end."""
        if self.is_stopped:
            return "", ()
        return self._show(self._detokenizer.flush(), is_last=True)

    def _show(self, decoded: str, *, is_last: bool) -> tuple[str, tuple[TokenDetail, ...]]:
        self._num_chars += len(decoded)
        shown = decoded
        if self._stop_matcher is not None:
            shown, self.is_stopped = self._stop_matcher.push(decoded)
            if is_last and not self.is_stopped:
                shown += self._stop_matcher.flush()
        self._num_shown += len(shown)
        return shown, self._release(is_last=is_last and not self.is_stopped) if self._held else ()

    def _release(self, *, is_last: bool) -> tuple[TokenDetail, ...]:
        """Hand out the tokens whose text has begun to show; those of a stop string are dropped with it."""
        num_free = len(self._held)
        if not is_last:
            num_free = sum(detail.offset < self._num_shown for detail in self._held)
        released, self._held = tuple(self._held[:num_free]), self._held[num_free:]
        return released
