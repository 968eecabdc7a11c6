"""What the screen says when there is nothing to measure: loading, failed, not found, or not yet asked."""

import textwrap

from textual.content import Content

from tui.drawing import bar
from tui.figures import age, byte_share, percent
from tui.frame import Frame
from tui.widgets.panel import Panel

_WIDEST = 72


class Card(Panel):
    """One message in the middle of its area."""

    def lines(self) -> list[Content]:
        """The message, centred as a block."""
        width, height = self.content_size
        message = self.message()
        widest = max((line.cell_length for line in message), default=0)
        left, above = (width - widest) // 2, max((height - len(message)) // 2, 0)
        return [Content("")] * above + [line.pad_left(max(left, 0)) for line in message]

    def message(self) -> list[Content]:
        """The lines for the present state."""
        width = min(self.content_size.width, _WIDEST)
        snapshot = self.frame.snapshot
        if snapshot is None:
            return _searching(self.frame, width)
        if snapshot.phase == "failed":
            return _failed(self.frame, width)
        if snapshot.phase == "draining":
            return _draining(self.frame, width)
        return _loading(self.frame, width)


class Welcome(Card):
    """The appliance is ready and nobody has asked it anything yet: how to ask."""

    def message(self) -> list[Content]:
        """A request to copy."""
        lines = first_request(self.frame)
        return [
            Content.styled("Ready for the first request. Paste this into another terminal:", "$ink"),
            *([Content("")] if self.content_size.height > len(lines) + 1 else []),
            *(Content.styled(line, "$p50") for line in lines),
        ]


def first_request(frame: Frame) -> list[str]:
    """A curl command line that works as it stands, in lines of at most 76 cells for usual names."""
    snapshot = frame.snapshot
    model = snapshot.model.id if snapshot and snapshot.model else "default"
    key = ["  -H 'Authorization: Bearer YOUR_API_KEY' \\"] if frame.asks_for_key else []
    return [
        f"curl {frame.address}/v1/chat/completions \\",
        *key,
        "  -H 'Content-Type: application/json' \\",
        f"""  -d '{{"model": "{model}",""",
        """       "messages": [{"role": "user", "content": "Hello"}]}'""",
    ]


def _wrapped(text: str, width: int, style: str) -> list[Content]:
    return [
        Content.styled(line, style)
        for paragraph in text.splitlines()
        for line in textwrap.wrap(paragraph, width)
    ]


def _searching(frame: Frame, width: int) -> list[Content]:
    if frame.is_searching or frame.outage is None:
        return _wrapped(f"Looking for an appliance at {frame.address}", width, "$dim")
    if frame.outage.is_refused:
        return [
            *_wrapped(f"The appliance at {frame.address} is locked", width, "bold $warn"),
            *_wrapped(f"{frame.outage.reason[:1].upper()}{frame.outage.reason[1:]}.", width, "$ink"),
        ]
    return [
        *_wrapped(f"No appliance at {frame.address}", width, "bold $warn"),
        *_wrapped(f"{frame.outage.reason[:1].upper()}{frame.outage.reason[1:]}.", width, "$ink"),
        Content(""),
        *_wrapped("Trying again until it answers. Start one with:", width, "$dim"),
        Content.styled("appliance serve", "$p50"),
    ]


def _failed(frame: Frame, width: int) -> list[Content]:
    snapshot = frame.snapshot
    reason = snapshot.phase_detail if snapshot else ""
    return [
        Content.styled("The appliance could not start", "bold $bad"),
        Content(""),
        *_wrapped(reason or "No reason was given; its log may know more.", width, "$ink"),
        Content(""),
        Content.styled("Mend that and start it again. q leaves this screen.", "$dim"),
    ]


def _draining(frame: Frame, width: int) -> list[Content]:
    detail = frame.snapshot.phase_detail if frame.snapshot else ""
    return [
        Content.styled("The appliance is shutting down", "bold $warn"),
        *_wrapped(detail, width, "$ink"),
    ]


def _loading(frame: Frame, width: int) -> list[Content]:
    snapshot = frame.snapshot
    assert snapshot is not None
    name = snapshot.model.id if snapshot.model else "the model"
    title = {"warming": f"Warming up {name}", "loading": f"Loading {name}"}.get(snapshot.phase, "Starting")
    progress = snapshot.phase_progress
    bar_width = min(width - 6, 56)
    lines = [
        Content.styled(title, "bold $ink"),
        Content(""),
        Content.assemble(
            bar([(progress or 0.0, "$p50")], bar_width), (f"  {percent(progress)}", "bold $ink")
        ),
        *_wrapped(snapshot.phase_detail, width, "$dim"),
    ]
    facts = f"{age(snapshot.uptime_s)} so far"
    if snapshot.memory is not None:
        used = byte_share(snapshot.memory.process_resident_bytes, snapshot.memory.limit_bytes).strip()
        facts += f" · memory {used}"
    return [*lines, Content(""), Content.styled(facts, "$dim")]
