"""Sends one request's texts to its client, as a stream or whole. Knows ASGI; knows no protocol's JSON.

A client that goes away ends its sequences at once, in both modes. A status is sent only when there is
something to say, so an error that comes before the first token still is a proper HTTP error.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from litestar.enums import ScopeType
from litestar.types import HTTPScope, Receive, Scope, Send

from appliance.errors import ApplianceError
from appliance.observe.request_context import RequestContext, Stage, current_request
from appliance.observe.request_log import log_finished
from appliance.observe.request_record import RequestRecord
from appliance.server.appliance_state import ApplianceState
from appliance.server.generation_group import GenerationGroup, TokenUsage
from appliance.server.request_body import RECEIVE_KEY
from appliance.server.stream_writer import (
    EVENT_STREAM,
    StreamKind,
    StreamWriter,
    send_json,
    wait_until_gone,
)
from appliance.server.text_events import DeltaEvent, FinishedText, TextEnd, TextEvent, finished_text

# Longer than any step in flight; until then the record of a client that left would say too little.
_SETTLE_S = 5.0


class AnswerFormat(Protocol):
    """One protocol's way to write an answer."""

    def encode(self, event: TextEvent) -> bytes:
        """Return the part of a stream that tells one event."""

    def close(self, usage: TokenUsage) -> bytes:
        """Return the last part of a stream that went well."""

    def encode_error(self, error: ApplianceError) -> bytes:
        """Return the last part of a stream that did not."""

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        """Return the body of an answer that is not streamed."""


class Answer:
    """An ASGI application that gives one request's answer."""

    def __init__(
        self,
        group: GenerationGroup,
        answer_format: AnswerFormat,
        *,
        state: ApplianceState,
        request_id: str,
        model_id: str,
        is_streamed: bool,
        stream_kind: StreamKind = EVENT_STREAM,
    ) -> None:
        self._group = group
        self._format = answer_format
        self._state = state
        self._request_id = request_id
        self._model_id = model_id
        self._is_streamed = is_streamed
        self._stream_kind = stream_kind
        self._is_client_gone = False
        self._send_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        self._state.generation_started(self._group)
        watcher = asyncio.create_task(wait_until_gone(receive))
        watcher.add_done_callback(self._on_client_gone)
        try:
            if self._is_streamed:
                await self._stream(scope, send)
            else:
                await self._send_whole(send)
        finally:
            watcher.remove_done_callback(self._on_client_gone)
            watcher.cancel()
            try:
                if self._is_client_gone:
                    await self._group.settle(_SETTLE_S)
            finally:
                self._close(scope)

    def _close(self, scope: HTTPScope) -> None:
        self._group.close()
        self._state.generation_ended(self._group)
        context = current_request() or RequestContext(request_id=self._request_id)
        context.record = record = self._record(scope, context)
        self._state.latency.requests.add(record)
        log_finished(record)

    def _on_client_gone(self, _: "asyncio.Task[None]") -> None:
        self._is_client_gone = True
        self._group.cancel()
        self._group.nudge()

    def _reason(self) -> str:
        if self._is_client_gone:
            return "client gone"
        # Each reason once: they are a label of the metrics.
        return ",".join(sorted({end.reason.value for end in self._group.ends})) or "failed"

    def _record(self, scope: HTTPScope, context: RequestContext) -> RequestRecord:
        timing, usage = self._group.timing, self._group.usage
        return RequestRecord(
            request_id=self._request_id,
            model=self._model_id,
            service_class=self._group.service_class.value,
            reason=self._reason(),
            ended_unix_s=time.time(),
            prompt_tokens=usage.num_prompt_tokens,
            output_tokens=usage.num_output_tokens,
            prefix_hit_tokens=usage.num_prefix_hit_tokens,
            receive_s=scope["state"].get(RECEIVE_KEY, 0.0),
            parse_s=max(0.0, timing.prepare_s - sum(context.seconds.values())),
            load_s=context.spent_s(Stage.LOAD),
            template_s=context.spent_s(Stage.TEMPLATE),
            tokenize_s=context.spent_s(Stage.TOKENIZE),
            grammar_s=context.spent_s(Stage.GRAMMAR),
            queue_s=timing.queue_s,
            prefill_s=timing.prefill_s,
            decode_s=timing.decode_s,
            longest_gap_s=timing.longest_gap_s,
            detokenize_s=timing.detokenize_s,
            send_s=self._send_s,
            ttft_s=timing.ttft_s,
            tpot_s=timing.tpot_s,
            total_s=timing.total_s,
        )

    async def _send_whole(self, send: Send) -> None:
        deltas: list[DeltaEvent] = []
        while not self._group.is_done:
            events = await self._group.read()
            if self._is_client_gone:
                return
            self._group.sent(events)
            _raise_bad_end(events)
            deltas += [event for event in events if not isinstance(event, TextEnd)]
        choices = [finished_text(deltas, end) for end in sorted(self._group.ends, key=lambda end: end.index)]
        body = self._format.encode_whole(choices, self._group.usage)
        began_s = self._group.timing.clock()
        await send_json(send, body)
        self._send_s += self._group.timing.clock() - began_s

    async def _stream(self, scope: HTTPScope, send: Send) -> None:
        events = await self._first_events()
        if self._is_client_gone:
            return
        writer = StreamWriter(
            scope, send, self._state.limits, nudge=self._group.nudge, kind=self._stream_kind
        )
        try:
            await writer.start()
            await self._relay(events, writer)
            await writer.end()
        finally:
            writer.close()

    async def _first_events(self) -> list[TextEvent]:
        """Wait for the first events, or the time of the first ping. Raises what ended a choice before."""
        events: list[TextEvent] = []
        try:
            async with asyncio.timeout(self._state.limits.ping_interval_s):
                while not events and not self._is_client_gone:
                    events = await self._group.read()
        except TimeoutError:
            return []
        if not self._is_client_gone:
            _raise_bad_end(events[:1])
        return events

    async def _relay(self, events: list[TextEvent], writer: StreamWriter) -> None:
        """Write events until the group is done, an error ends it, or the client is gone."""
        while True:
            error = _bad_end(events)
            told = [e for e in events if not _bad_end([e])] if error else events
            await self._write(told, error, writer)
            if error is not None or self._group.is_done:
                return
            events = await self._group.read(partial(self._write_at_once, writer))
            if self._is_client_gone:
                return

    def _write_at_once(self, writer: StreamWriter, events: Sequence[TextEvent]) -> bool:
        """Write what needs neither waiting nor thought; False where it was not done."""
        if self._is_client_gone or not writer.is_free:
            return False
        for event in events:
            if isinstance(event, TextEnd):
                return False
        data = b"".join([self._format.encode(event) for event in events])
        if data:
            writer.write_now(data)
        self._group.sent(events)
        return True

    async def _write(
        self, events: list[TextEvent], error: ApplianceError | None, writer: StreamWriter
    ) -> None:
        parts = [self._format.encode(event) for event in events]
        if error is not None:
            parts.append(self._format.encode_error(error))
        elif self._group.is_done:
            parts.append(self._format.close(self._group.usage))
        began_s = self._group.timing.clock()
        await writer.write(b"".join(parts), news="" if parts else self._queue_news())
        self._send_s += self._group.timing.clock() - began_s
        self._group.sent(events)

    def _queue_news(self) -> str:
        place = self._group.queue_place
        return f"queued {place.position} of {place.total}" if place else ""


def _bad_end(events: list[TextEvent]) -> ApplianceError | None:
    for event in events:  # once a token: a generator would cost more than the loop
        if isinstance(event, TextEnd) and event.error:
            return event.error
    return None


def _raise_bad_end(events: list[TextEvent]) -> None:
    error = _bad_end(events)
    if error is not None:
        raise error
