"""What is known of the answers' quality: the precision, what `appliance eval` and `calibrate` found.

Measures nothing."""

import textwrap
import time

from textual.content import Content

from appliance.server.schemas import DomainSnapshot, ModelSnapshot, QualitySnapshot
from tui.figures import age
from tui.frame import Frame
from tui.views.layer_losses import loss_line, loss_rows
from tui.widgets.panel import Panel

_WIDEST = 76
_LABEL_WIDTH = 14
_COLUMNS = ("perplexity", "reference", "rise", "same token", "mean KL", "P99 KL")
_COLUMN_WIDTH = 10


class QualityView(Panel):
    """Without a measurement that is said, and how to get one."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Quality"

    def lines(self) -> list[Content]:
        """Facts, then what was measured, or that nothing was."""
        model = self.frame.snapshot.model if self.frame.snapshot else None
        width = min(self.content_size.width, _WIDEST)
        quality = model.quality if model else None
        found = _measured(quality, width) if quality else _not_measured(model, width)
        lines = [*_facts(self.frame), Content(""), *found]
        losses = model.layer_losses if model else ()
        return [*lines, *(loss_rows(losses, self.content_size.height - len(lines)) if losses else [])]


def _measured(quality: QualitySnapshot, width: int) -> list[Content]:
    """One row a kind of text, then what is past its bound."""
    ago = age(max(0.0, time.time() - quality.measured_s)).strip()
    title = Content.assemble(
        ("Measured ", "bold $ink"), (f"{ago} ago, {quality.variant} against {quality.against}", "$ink")
    )
    head = Content.styled(" " * _LABEL_WIDTH + "".join(f"{c:>{_COLUMN_WIDTH}}" for c in _COLUMNS), "$dim")
    rows = [_domain(name, domain) for name, domain in {**quality.domains, "all": quality.overall}.items()]
    verdict = Content.styled("Every kind of text is within its bounds.", "$p50")
    failures = [line for failure in quality.failures for line in _wrapped(f"! {failure}", width, "bold $bad")]
    note = _wrapped("No tokens are guessed ahead here, so there is no acceptance to show.", width, "$dim")
    return [title, head, *rows, Content(""), *(failures or [verdict]), Content(""), *note]


def _domain(name: str, domain: DomainSnapshot) -> Content:
    rise = domain.perplexity / domain.reference_perplexity - 1 if domain.reference_perplexity else 0.0
    figures = (
        f"{domain.perplexity:.2f}",
        f"{domain.reference_perplexity:.2f}",
        f"{rise:+.1%}",
        f"{domain.top1_agreement:.1%}",
        f"{domain.mean_kl:.4f}",
        f"{domain.p99_kl:.3f}",
    )
    return Content.assemble(
        (f"{name:<{_LABEL_WIDTH}}", "$dim"), ("".join(f"{f:>{_COLUMN_WIDTH}}" for f in figures), "bold $ink")
    )


def _not_measured(model: ModelSnapshot | None, width: int) -> list[Content]:
    name = model.id if model else "MODEL"
    return [
        Content.styled("Nothing was measured yet", "bold $warn"),
        *_wrapped(
            "What quantization costs this model, in perplexity, divergence and agreement with the 16-bit "
            "model, is measured once and then shown here:",
            width,
        ),
        Content.styled(f"  appliance eval {name}", "bold $p50"),
        Content(""),
        *_wrapped("Which layers lose most, as INT8, is found with prompts like yours:", width),
        Content.styled(f"  appliance calibrate --prompts FILE {name}", "bold $p50"),
        Content(""),
        *_wrapped("A higher precision is chosen at the start: --precision, --kv-dtype.", width),
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
    facts = [
        Content.assemble((f"{name:<{_LABEL_WIDTH}}", "$dim"), (text, "bold $ink")) for name, text in rows
    ]
    if model.layer_losses:
        label = Content.styled(f"{'INT8 by layer':<{_LABEL_WIDTH}}", "$dim")
        facts.append(Content.assemble(label, loss_line(model.layer_losses)))
    return facts


def _wrapped(text: str, width: int, style: str = "$ink") -> list[Content]:
    return [
        Content.styled(line, style) for line in textwrap.wrap(text, max(width, 20), break_on_hyphens=False)
    ]
