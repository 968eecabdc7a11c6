"""Try the model: a question below, the conversation above, streamed and stoppable."""

import time
from contextlib import aclosing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Input, Static
from textual.worker import Worker

from tui.calls import ApplianceCalls, CallError
from tui.figures import bare_rate, count, seconds
from tui.frame import Frame
from tui.widgets.bubble import Bubble
from tui.wire import Said, Usage


class ChatView(Vertical):
    """The conversation lives here only: leaving the dashboard forgets it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop or leave", show=False),
        Binding("n", "restart", "new conversation", show=False),
        Binding("enter,i", "write", "write", show=False),
    ]

    frame: reactive[Frame] = reactive(Frame(), always_update=True)

    def __init__(self, calls: ApplianceCalls, *, id: str) -> None:  # noqa: A002  (textual's own name)
        super().__init__(id=id)
        self._calls = calls
        self._said: list[Said] = []
        self._answering: Worker[None] | None = None
        # These outlive the view: a stream that is cut at the end writes there.
        self._figures = Static(id="chat-note")
        self._conversation = VerticalScroll(id="conversation", can_focus=False)

    def compose(self) -> ComposeResult:
        """The conversation, a line of figures, the question."""
        with self._conversation, Vertical(id="said"):
            yield Static("Ask the model something. Nothing leaves the appliance.", id="chat-hint")
        yield self._figures
        yield Input(placeholder="your question", id="question")

    def on_show(self) -> None:
        """Ready to type."""
        self._question.focus()

    def watch_frame(self, frame: Frame) -> None:
        """Who answers stands in the border."""
        if self.is_mounted:
            model = frame.snapshot.model if frame.snapshot else None
            self._conversation.border_title = f"Chat with {model.id}" if model else "Chat"

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """One question at a time."""
        text = event.value.strip()
        if not text or self.is_answering:
            return
        event.input.clear()
        self._answering = self.run_worker(self._answer(text), group="answer")

    @property
    def is_answering(self) -> bool:
        """A stream is open."""
        return self._answering is not None and self._answering.is_running

    def action_stop(self) -> None:
        """Stops an answer; without one, gives the keys back to the tabs."""
        if self.is_answering and self._answering is not None:
            self._answering.cancel()
        else:
            self.screen.set_focus(None)

    def action_write(self) -> None:
        """Back into the field."""
        self._question.focus()

    async def action_restart(self) -> None:
        """Forgets the conversation."""
        if not self.is_answering:
            self._said.clear()
            await self.query(Bubble).remove()
            self._note("")
            self._question.focus()

    async def _answer(self, text: str) -> None:
        self.query_one("#chat-hint").display = False
        self._said.append(Said(role="user", content=text))
        answer = Bubble("assistant")
        await self.query_one("#said").mount(Bubble("user", text), answer)
        self._conversation.anchor()  # stays at the end unless the reader scrolls up
        try:
            await self._stream(answer)
        except CallError as error:
            self._note(f"No answer: {error}", "bold $warn")
        finally:
            await answer.finish()
            # What was said before a stop belongs to the conversation; an unanswered question does not.
            if answer.text:
                self._said.append(Said(role="assistant", content=answer.text))
            else:
                self._said.pop()

    async def _stream(self, answer: Bubble) -> None:
        began_s, first_s = time.monotonic(), None
        usage: Usage | None = None
        snapshot = self.frame.snapshot
        model = snapshot.model.id if snapshot and snapshot.model else None
        self._note("… Esc stops")
        try:
            async with aclosing(self._calls.chat(model, self._said)) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
                    piece = "".join(choice.delta.content or "" for choice in chunk.choices)
                    if piece:
                        first_s = first_s or time.monotonic()
                        await answer.grow(piece)
        finally:
            self._note(_figures(usage, began_s, first_s))

    def _note(self, text: str, style: str = "$dim") -> None:
        self._figures.update(Content.styled(text, style))

    @property
    def _question(self) -> Input:
        return self.query_one("#question", Input)


def _figures(usage: Usage | None, began_s: float, first_s: float | None) -> str:
    """`first token 142 ms · 31 tokens · 48.1 tok/s`, measured here, at the client."""
    if first_s is None:
        return ""
    ttft = f"first token {seconds(first_s - began_s).strip()}"
    if usage is None:
        return f"{ttft} · stopped"
    span_s = time.monotonic() - first_s
    speed = (
        f" · {bare_rate((usage.completion_tokens - 1) / span_s)} tok/s" if usage.completion_tokens > 1 else ""
    )
    return f"{ttft} · {count(usage.completion_tokens)} tokens{speed}"
