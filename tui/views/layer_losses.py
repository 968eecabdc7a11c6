"""What each layer loses in INT8, as one line and as rows. Knows figures, not where they come from."""

from collections.abc import Sequence

from textual.content import Content

from appliance.server.schemas import LayerLossSnapshot
from tui.drawing import bar

_STEPS = "▁▂▃▄▅▆▇█"
_MOST_STEPS = 30
_BAR_WIDTH = 32


def loss_line(losses: Sequence[LayerLossSnapshot]) -> Content:
    """`▁▂▇█▃  0.9–4.5%, worst: layer 29`: where layers are many, the worst of several is one step."""
    errors = [loss.error for loss in losses]
    worst = max(losses, key=lambda loss: loss.error)
    per_step = -(-len(errors) // _MOST_STEPS)
    steps = [max(errors[first : first + per_step]) for first in range(0, len(errors), per_step)]
    largest = worst.error or 1.0
    drawn = "".join(_STEPS[round((len(_STEPS) - 1) * max(step, 0.0) / largest)] for step in steps)
    told = f"  {100 * min(errors):.1f}–{worst.error:.1%}, worst: layer {worst.layer}"
    return Content.assemble((drawn, "$p50"), (told, "bold $ink"))


def loss_rows(losses: Sequence[LayerLossSnapshot], room: int) -> list[Content]:
    """As many layers as there is room for, below a heading: all in their order, or the worst first."""
    num_rows = room - 2
    if num_rows < 1:
        return []
    by_effect = sorted(losses, key=lambda loss: loss.effect, reverse=True)
    shown = losses if len(losses) <= num_rows else by_effect[:num_rows]
    largest = by_effect[0].effect or 1.0
    heading = (
        f"{'layer':<7}{'error':>7}  {'effect on the answers, nats a token':<{_BAR_WIDTH + 13}}in 16 bits"
    )
    return [Content(""), Content.styled(heading, "$dim"), *(_row(loss, largest) for loss in shown)]


def _row(loss: LayerLossSnapshot, largest: float) -> Content:
    return Content.assemble(
        (f"{loss.layer:>5}  ", "$dim"),
        (f"{loss.error:>7.2%}  ", "bold $ink"),
        bar([(max(loss.effect, 0.0) / largest, "$p50")], _BAR_WIDTH),
        (f" {loss.effect:>11.7f}", "bold $ink"),
        (f"{loss.num_kept or '':>6}", "$ink"),
    )
