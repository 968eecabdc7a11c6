"""Tells thoughts, tool calls and plain content of an answer apart while it is written. Knows text only.

What a tool call looks like is certain, because a grammar made the model write it so; what comes against all
expectation is content.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from appliance.text.call_syntax import CallSyntax, ThoughtSyntax


class Channel(StrEnum):
    """What a piece of an answer is."""

    CONTENT = "content"
    THOUGHT = "thought"
    NAME = "name"  # of a tool, in one piece: a call begins
    ARGUMENTS = "arguments"
    CALL_END = "call_end"  # empty: the arguments are complete
    SYNTAX = "syntax"  # what stands around the rest


@dataclass(frozen=True, slots=True)
class Segment:
    channel: Channel
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """What an answer may hold beside content. `begins_in_thought`: the prompt has opened one.

    `must_call`: what begins a call's marker is one, however early the answer is cut.
    """

    calls: CallSyntax | None = None
    thoughts: ThoughtSyntax | None = None
    begins_in_thought: bool = False
    must_call: bool = False

    @property
    def is_plain(self) -> bool:
        return self.calls is None and self.thoughts is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that a reader must see even where they are control tokens."""
        thoughts = (self.thoughts.open, self.thoughts.close) if self.thoughts else ()
        calls = (self.calls.marker, self.calls.before_arguments, self.calls.close) if self.calls else ()
        return (*thoughts, *calls)


PLAIN = AnswerRules()
_Step = Callable[[], Iterator[Segment]]


class AnswerReader:
    """Cuts a text into segments that, joined, are the text again; holds back what is not decided yet."""

    def __init__(self, rules: AnswerRules) -> None:
        self._calls = rules.calls
        self._thoughts = rules.thoughts
        self._must_call = rules.must_call
        self._held = ""
        self._has_called = False
        self._is_last = False
        self._scanner = _JsonScanner()
        self._step: _Step = self._begin if rules.thoughts else self._start_content
        if rules.thoughts and rules.begins_in_thought:
            self._step = self._enter_thought

    def push(self, text: str) -> list[Segment]:
        self._held += text
        return list(self._segments())

    def flush(self) -> list[Segment]:
        """What was held back, once no more text comes."""
        self._is_last = True
        return list(self._segments())

    @property
    def is_in_thought(self) -> bool:
        return self._step in (self._enter_thought, self._thought)

    def _segments(self) -> Iterator[Segment]:
        while True:
            step, held = self._step, self._held
            yield from step()
            if self._step == step and self._held == held:
                return

    def _begin(self) -> Iterator[Segment]:
        assert self._thoughts is not None
        text, marker = self._held.lstrip(), self._thoughts.open
        if text.startswith(marker):
            yield self._taken(Channel.SYNTAX, len(self._held) - len(text) + len(marker))
            self._step = self._enter_thought
        elif self._is_last or not marker.startswith(text):
            self._step = self._start_content

    def _enter_thought(self) -> Iterator[Segment]:
        yield from self._skip_blanks()
        if self._held:
            self._step = self._thought

    def _thought(self) -> Iterator[Segment]:
        assert self._thoughts is not None
        yield from self._until(self._thoughts.close, Channel.THOUGHT, self._leave_thought)

    def _leave_thought(self) -> Iterator[Segment]:
        yield from self._skip_blanks()
        if self._held:
            self._step = self._start_content

    def _start_content(self) -> Iterator[Segment]:
        """Where a call can only stand at the start, decide whether it does."""
        if self._calls is None:
            self._step = self._rest
        elif not self._calls.is_only_at_start or self._held.startswith(self._calls.marker):
            self._step = self._content
        elif self._is_last and self._must_call and self._calls.marker.startswith(self._held):
            yield from self._drop_begun(self._calls.marker)
        elif self._is_last or not self._calls.marker.startswith(self._held):
            self._step = self._rest

    def _content(self) -> Iterator[Segment]:
        assert self._calls is not None
        yield from self._until(self._calls.marker, Channel.CONTENT, self._open_group)

    def _drop_begun(self, marker: str) -> Iterator[Segment]:
        """Of an answer that was cut: what begins a marker."""
        length = _num_pending(self._held, marker)
        if length:
            yield self._taken(Channel.SYNTAX, length)

    def _rest(self) -> Iterator[Segment]:
        if self._held:
            yield self._taken(Channel.CONTENT, len(self._held))

    def _open_group(self) -> Iterator[Segment]:
        assert self._calls is not None
        yield from self._expect({self._calls.open + self._calls.before_name: self._name})

    def _name(self) -> Iterator[Segment]:
        """A name is given out whole."""
        assert self._calls is not None
        length = self._held.find(self._calls.before_arguments)
        if length >= 0:
            yield self._taken(Channel.NAME, length)
            yield self._taken(Channel.SYNTAX, len(self._calls.before_arguments))
            self._has_called = True
            self._scanner = _JsonScanner()
            self._step = self._arguments
        elif self._is_last and self._held:
            yield self._taken(Channel.SYNTAX, len(self._held))

    def _arguments(self) -> Iterator[Segment]:
        length = self._scanner.take(self._held)
        if length:
            yield self._taken(Channel.ARGUMENTS, length)
        if self._scanner.is_complete:
            yield Segment(Channel.CALL_END, "")
            self._step = self._close_call

    def _close_call(self) -> Iterator[Segment]:
        calls = self._calls
        assert calls is not None
        ends: dict[str, _Step] = {}
        if calls.between is not None:
            ends[calls.after_arguments + calls.between + calls.before_name] = self._name
        ends[calls.after_arguments + calls.close] = self._rest if calls.is_only_at_start else self._content
        yield from self._expect(ends)

    def _expect(self, texts: dict[str, _Step]) -> Iterator[Segment]:
        """Pass over the first of the texts that comes; what is none of them is content to the end."""
        for text, step in texts.items():
            if self._held.startswith(text):
                yield self._taken(Channel.SYNTAX, len(text))
                self._step = step
                return
            if text.startswith(self._held) and not self._is_last:
                return
        if self._held and self._is_last:
            yield self._taken(Channel.SYNTAX, len(self._held))
        elif self._held:
            self._step = self._rest

    def _until(self, marker: str, channel: Channel, then: _Step) -> Iterator[Segment]:
        """Give out what comes before the marker, without the blanks around it."""
        place = self._held.find(marker)
        end = place if place >= 0 else len(self._held) - _num_pending(self._held, marker)
        is_cut = self._is_last and self._must_call and channel is Channel.CONTENT
        length = (
            len(self._held) if self._is_last and place < 0 and not is_cut else len(self._held[:end].rstrip())
        )
        if self._is_last and self._has_called and not self._held.strip():
            channel = Channel.SYNTAX
        if length:
            yield self._taken(channel, length)
        if is_cut and place < 0 and self._held:
            yield self._taken(Channel.SYNTAX, len(self._held))
        if place >= 0:
            yield self._taken(Channel.SYNTAX, place - length + len(marker))
            self._step = then

    def _skip_blanks(self) -> Iterator[Segment]:
        length = len(self._held) - len(self._held.lstrip())
        if length:
            yield self._taken(Channel.SYNTAX, length)

    def _taken(self, channel: Channel, length: int) -> Segment:
        text, self._held = self._held[:length], self._held[length:]
        return Segment(channel, text)


class _JsonScanner:
    """Finds the end of one JSON object or list in a text that comes in pieces."""

    _NOTABLE = re.compile(r'["\\{}\[\]]')

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False

    def take(self, text: str) -> int:
        """Return how many characters belong to the value."""
        place = 1 if self._is_escaped and text else 0
        self._is_escaped = self._is_escaped and not text
        while match := self._NOTABLE.search(text, place):
            place = match.end()
            mark = match.group()
            if mark == "\\":
                self._is_escaped = place == len(text)
                place += 1
            elif mark == '"':
                self._is_in_text = not self._is_in_text
            elif not self._is_in_text:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self.is_complete = True
                    return place
        return len(text)


def _num_pending(text: str, marker: str) -> int:
    """Return the length of the longest end of the text that begins the marker."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
