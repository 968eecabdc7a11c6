"""What is known of the answers' quality: the precision, and that nothing was measured. Knows no layers."""

import textwrap

from textual.content import Content

from tui.frame import Frame
from tui.widgets.panel import Panel

_WIDEST = 76
_LABEL_WIDTH = 14


class QualityView(Panel):
    """The snapshot holds no measurement of quality: that is said, and what decides the quality is shown."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Quality"

    def lines(self) -> list[Content]:
        """Facts, then what is missing."""
        width = min(self.content_size.width, _WIDEST)
        return [
            *_facts(self.frame),
            Content(""),
            Content.styled("Nothing was measured yet", "bold $warn"),
            *_wrapped(
                "This appliance reports no quantization error by layer, no perplexity against the 16-bit "
                "model and no acceptance of speculative tokens. What it does not report is not shown as "
                "a number here.",
                width,
            ),
            Content(""),
            *_wrapped(
                "What decides it meanwhile: the precision of the weights and of the KV pool above. A higher "
                "precision is chosen at the start, with --precision and --kv-dtype.",
                width,
            ),
        ]


def _facts(frame: Frame) -> list[Content]:
    model = frame.snapshot.model if frame.snapshot else None
    if model is None:
        return [Content.styled("No model is loaded.", "$dim")]
    rows = (
        ("model", model.id),
        ("weights", model.precision),
        ("KV pool", model.kv_dtype),
        ("runs on", f"{model.backend}, {model.device}"),
    )
    return [Content.assemble((f"{name:<{_LABEL_WIDTH}}", "$dim"), (text, "bold $ink")) for name, text in rows]


def _wrapped(text: str, width: int) -> list[Content]:
    return [Content.styled(line, "$ink") for line in textwrap.wrap(text, max(width, 20))]
