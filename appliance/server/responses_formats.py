"""Writes answers as OpenAI's responses, whole or as a stream of numbered events. Knows JSON, no engine."""

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from appliance.engine.sequence import FinishReason
from appliance.errors import ApplianceError
from appliance.server.generation_group import TokenUsage
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.responses_schemas import (
    IncompleteDetails,
    InputTokensDetails,
    Json,
    OutputTokensDetails,
    ResponseBody,
    ResponseError,
    ResponseUsage,
)
from appliance.server.text_events import (
    CallDelta,
    CallEnd,
    CallStart,
    FinishedText,
    TextDelta,
    TextEnd,
    TextEvent,
    ThoughtDelta,
    TokenDetail,
)

_encode = msgspec.json.Encoder().encode
# Of a part by the kind of its item: the part's type, and what its events are called.
_PARTS = {
    "message": ("output_text", "response.output_text"),
    "reasoning": ("reasoning_text", "response.reasoning_text"),
}
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class OpenItem:
    """One item of the output while it grows."""

    def __init__(self, kind: str, place: int, logprobs: LogprobWriter | None, call: CallStart | None) -> None:
        self.kind = kind
        self.item_id = f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        self.place = place
        self.pieces: list[str] = []
        self.tokens: list[TokenDetail] = []
        self._call = call
        self._logprobs = logprobs

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str, tokens: list[TokenDetail]) -> Json:
        kind = _PARTS[self.kind][0]
        if self.kind == "reasoning":
            return {"type": kind, "text": text}
        return {"type": kind, "text": text, "annotations": [], "logprobs": self.logprobs(tokens)}

    def logprobs(self, tokens: list[TokenDetail]) -> list[Any]:  # Any: JSON
        return list(self._logprobs.chat(tuple(tokens)).content) if self._logprobs else []

    def json(self, status: str) -> Json:
        """The item as it stands; it has no content yet while it is in progress."""
        begun = status == "in_progress"
        if self.kind == "function_call":
            assert self._call is not None
            return {
                "id": self.item_id,
                "type": self.kind,
                "status": status,
                "call_id": self._call.call_id,
                "name": self._call.name,
                "arguments": self.text,
            }
        content = [] if begun else [self.part(self.text, self.tokens)]
        if self.kind == "reasoning":
            return {
                "id": self.item_id,
                "type": self.kind,
                "summary": [],
                "content": content,
                "status": status,
            }
        return {
            "id": self.item_id,
            "type": self.kind,
            "status": status,
            "role": "assistant",
            "content": content,
        }


class ResponsesFormat:
    """A response of one answer. `keep` is given the finished one."""

    def __init__(
        self, head: ResponseBody, logprobs: LogprobWriter | None, keep: Callable[[ResponseBody], None]
    ) -> None:
        self._head = head
        self._logprobs = logprobs
        self._keep = keep
        self._numbers = itertools.count()
        self._item: OpenItem | None = None
        self._output: list[Json] = []
        self._has_begun = False
        self._end: TextEnd | None = None

    def encode(self, event: TextEvent) -> bytes:
        opening = [] if self._has_begun else self._opening()
        return b"".join([*opening, *self._told(event)])

    def close(self, usage: TokenUsage) -> bytes:
        assert self._end is not None
        body = self._finished(self._output, self._end, usage)
        self._keep(body)
        return self._event(f"response.{body.status}", response=body)

    def encode_error(self, error: ApplianceError) -> bytes:
        failure = ResponseError(code=error.code, message=error.message)
        body = msgspec.structs.replace(self._head, status="failed", error=failure, output=self._output)
        opening = [] if self._has_begun else self._opening()
        return b"".join([*opening, self._event("response.failed", response=body)])

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        (choice,) = choices
        body = self._finished(self._items_of(choice), choice.end, usage)
        self._keep(body)
        return _encode(body)

    def _opening(self) -> list[bytes]:
        self._has_begun = True
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._head) for kind in kinds]

    def _told(self, event: TextEvent) -> list[bytes]:
        match event:
            case TextDelta():
                return [*self._opened("message"), *self._more(event.text, list(event.tokens))]
            case ThoughtDelta():
                return [*self._opened("reasoning"), *self._more(event.text, [])]
            case CallStart():
                return self._opened("function_call", event)
            case CallDelta():
                return self._more(event.arguments, [])
            case CallEnd():
                return self._closed("completed")
            case TextEnd():
                return self._ended(event)

    def _ended(self, end: TextEnd) -> list[bytes]:
        """An answer that said nothing is an empty message."""
        self._end = end
        parts = self._closed(_status(end))
        if not self._output and not parts:
            parts = [*self._opened("message"), *self._closed(_status(end))]
        return parts

    def _opened(self, kind: str, call: CallStart | None = None) -> list[bytes]:
        """Begin an item of that kind unless it is the one under way."""
        if self._item is not None and self._item.kind == kind and call is None:
            return []
        parts = self._closed("completed")
        self._item = item = OpenItem(kind, len(self._output), self._logprobs, call)
        parts.append(
            self._event("response.output_item.added", output_index=item.place, item=item.json("in_progress"))
        )
        if kind in _PARTS:
            parts.append(self._part_event("response.content_part.added", item, part=item.part("", [])))
        return parts

    def _more(self, text: str, tokens: list[TokenDetail]) -> list[bytes]:
        item = self._item
        assert item is not None, "text without an item"
        item.pieces.append(text)
        item.tokens += tokens
        if item.kind == "function_call":
            kind = "response.function_call_arguments.delta"
            return [self._event(kind, item_id=item.item_id, output_index=item.place, delta=text)]
        extra: Json = {"logprobs": item.logprobs(tokens)} if item.kind == "message" else {}
        return [self._part_event(f"{_PARTS[item.kind][1]}.delta", item, delta=text, **extra)]

    def _closed(self, status: str) -> list[bytes]:
        """End the item under way. A call that was cut off is told of and left out of the output."""
        item, self._item = self._item, None
        if item is None:
            return []
        finished = item.json(status)
        if item.kind != "function_call" or status == "completed":
            self._output.append(finished)
        if item.kind == "function_call":
            kind = "response.function_call_arguments.done"
            name = finished["name"]
            parts = [
                self._event(
                    kind, item_id=item.item_id, output_index=item.place, name=name, arguments=item.text
                )
            ]
        else:
            extra: Json = {"logprobs": item.logprobs(item.tokens)} if item.kind == "message" else {}
            parts = [
                self._part_event(f"{_PARTS[item.kind][1]}.done", item, text=item.text, **extra),
                self._part_event("response.content_part.done", item, part=finished["content"][0]),
            ]
        return [*parts, self._event("response.output_item.done", output_index=item.place, item=finished)]

    def _part_event(self, kind: str, item: OpenItem, **fields: Any) -> bytes:  # Any: JSON
        place: Json = {"item_id": item.item_id, "output_index": item.place, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:  # Any: JSON
        data = {"type": kind, "sequence_number": next(self._numbers), **fields}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(data))

    def _items_of(self, choice: FinishedText) -> list[Json]:
        items: list[Json] = []
        if choice.thoughts:
            thought = OpenItem("reasoning", 0, None, None)
            thought.pieces.append(choice.thoughts)
            is_last = not choice.text and not choice.calls
            items.append(thought.json(_status(choice.end) if is_last else "completed"))
        if choice.text or not (choice.calls or choice.thoughts):
            message = OpenItem("message", len(items), self._logprobs, None)
            message.pieces.append(choice.text)
            message.tokens += choice.tokens
            items.append(message.json("completed" if choice.calls else _status(choice.end)))
        for call in choice.calls:
            start = CallStart(index=0, call=0, call_id=call.call_id, name=call.name)
            item = OpenItem("function_call", len(items), None, start)
            item.pieces.append(call.arguments)
            items.append(item.json("completed"))
        return items

    def _finished(self, output: list[Json], end: TextEnd, usage: TokenUsage) -> ResponseBody:
        is_cut = end.reason is FinishReason.LENGTH
        return msgspec.structs.replace(
            self._head,
            status="incomplete" if is_cut else "completed",
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
            output=output,
            usage=ResponseUsage(
                input_tokens=usage.num_prompt_tokens,
                input_tokens_details=InputTokensDetails(cached_tokens=usage.num_prefix_hit_tokens),
                output_tokens=usage.num_output_tokens,
                output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.num_thought_tokens),
                total_tokens=usage.num_prompt_tokens + usage.num_output_tokens,
            ),
        )


def _status(end: TextEnd) -> str:
    return "incomplete" if end.reason is FinishReason.LENGTH else "completed"
