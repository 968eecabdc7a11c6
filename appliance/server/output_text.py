"""Builds one choice's answer token by token: whole characters only, never part of a stop string.

Knows the detokenizer, the stop matcher and the reader of answers; knows no engine.
"""

import secrets
import string
from collections.abc import Iterator

from appliance.engine.batch import TokenLogprobs
from appliance.server.text_events import (
    CallDelta,
    CallEnd,
    CallStart,
    DeltaEvent,
    TextDelta,
    ThoughtDelta,
    TokenDetail,
)
from appliance.text.answer_reader import PLAIN, AnswerReader, AnswerRules, Channel, Segment
from appliance.text.detokenizer import Detokenizer
from appliance.text.stop_strings import StopMatcher
from appliance.text.tokenizer import Tokenizer

_CALL_ID_CHARACTERS = string.ascii_letters + string.digits
_CALL_ID_LENGTH = 24


class OutputText:
    """Events so far, and what of the text may be shown. Stop strings end content, not thoughts or calls."""

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...], *, index: int = 0, rules: AnswerRules = PLAIN
    ) -> None:
        self.num_calls = 0  # complete ones
        self.num_thought_tokens = 0
        self._index = index
        self._detokenizer = Detokenizer(tokenizer, visible=rules.markers)
        self._content = ContentText(stop)
        self._reader = None if rules.is_plain else AnswerReader(rules)
        self._id_length = rules.calls.call_id_length if rules.calls else 0
        self._call = -1  # of the latest call
        self._num_read = 0  # characters decoded
        self._num_cut = 0  # characters that the reader told apart
        self._details: list[TokenDetail] = []  # of tokens whose characters the reader still holds

    @property
    def is_stopped(self) -> bool:
        return self._content.stop is not None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text."""
        return self._content.stop

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> list[DeltaEvent]:
        """Take one token; return what may be shown now."""
        text = self._detokenizer.push(token_id)
        if self._reader is None:
            self._content.note(token_id, logprobs)
            return self._shown(*self._content.push(text))
        self.num_thought_tokens += self._reader.is_in_thought
        if logprobs is not None:
            self._details.append(TokenDetail(token_id=token_id, offset=self._num_read, logprobs=logprobs))
        self._num_read += len(text)
        return self._told(self._reader.push(text))

    def flush(self) -> list[DeltaEvent]:
        """Return what was held back in the hope of more. Call once, at the end."""
        if self.is_stopped:
            return []
        text = self._detokenizer.flush()
        if self._reader is None:
            return self._shown(*self._content.push(text, is_last=True))
        events = self._told([*self._reader.push(text), *self._reader.flush()])
        return [] if self.is_stopped else events + self._shown(*self._content.push("", is_last=True))

    def _told(self, segments: list[Segment]) -> list[DeltaEvent]:
        events: list[DeltaEvent] = []
        for segment in segments:
            if self.is_stopped:
                break
            events += self._events(segment)
        return events

    def _events(self, segment: Segment) -> Iterator[DeltaEvent]:
        details = self._details_of(segment)
        match segment.channel:
            case Channel.CONTENT:
                for detail in details:
                    self._content.note(detail.token_id, detail.logprobs)
                yield from self._shown(*self._content.push(segment.text))
            case Channel.THOUGHT:
                yield ThoughtDelta(index=self._index, text=segment.text)
            case Channel.NAME:
                yield from self._shown(*self._content.push("", is_last=True))
                self._call += 1
                yield CallStart(
                    index=self._index, call=self._call, call_id=_call_id(self._id_length), name=segment.text
                )
            case Channel.ARGUMENTS:
                yield CallDelta(index=self._index, call=self._call, arguments=segment.text)
            case Channel.CALL_END:
                self.num_calls += 1
                yield CallEnd(index=self._index, call=self._call)
            case Channel.SYNTAX:
                pass

    def _details_of(self, segment: Segment) -> list[TokenDetail]:
        """Take out the tokens whose text begins in this segment."""
        self._num_cut += len(segment.text)
        num_own = sum(detail.offset < self._num_cut for detail in self._details)
        own, self._details = self._details[:num_own], self._details[num_own:]
        return own

    def _shown(self, text: str, tokens: tuple[TokenDetail, ...]) -> list[DeltaEvent]:
        return [TextDelta(index=self._index, text=text, tokens=tokens)] if text or tokens else []


class ContentText:
    """Content up to a stop string. Details of tokens wait until their text is shown."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.stop: str | None = None  # the one that ended the text
        self._stop_matcher = StopMatcher(stop) if stop else None
        self._num_chars = 0
        self._num_shown = 0
        self._held: list[TokenDetail] = []

    def note(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Remember the next token, whose text comes with the next `push`."""
        if logprobs is not None:
            self._held.append(TokenDetail(token_id=token_id, offset=self._num_chars, logprobs=logprobs))

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, tuple[TokenDetail, ...]]:
        """Take text; return the text and the token details that may be shown now."""
        self._num_chars += len(text)
        shown = text
        if self._stop_matcher is not None:
            shown, is_stopped = self._stop_matcher.push(text)
            self.stop = self._stop_matcher.matched
            if is_last and not is_stopped:
                shown += self._stop_matcher.flush()
        self._num_shown += len(shown)
        return shown, self._release(is_last=is_last and self.stop is None) if self._held else ()

    def _release(self, *, is_last: bool) -> tuple[TokenDetail, ...]:
        """Hand out the tokens whose text has begun to show; those of a stop string are dropped with it."""
        num_free = len(self._held)
        if not is_last:
            num_free = sum(detail.offset < self._num_shown for detail in self._held)
        released, self._held = tuple(self._held[:num_free]), self._held[num_free:]
        return released


def _call_id(length: int) -> str:
    """Some models are trained on identifiers of a certain length."""
    text = "".join(secrets.choice(_CALL_ID_CHARACTERS) for _ in range(length or _CALL_ID_LENGTH))
    return text if length else f"call_{text}"
