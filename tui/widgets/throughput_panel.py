"""Tokens per second: the output as one big figure with its curve, the prompts beside it, the totals."""

from textual.content import Content

from appliance.server.schemas import Throughput
from tui.drawing import BIG_FIGURE_HEIGHT, Curve, big_figure, plot, plot_columns
from tui.figures import GAP, bare_rate, count, percent, rate
from tui.frame import Frame
from tui.widgets.panel import Panel

# "12.3k" in big letters; also "prompt 1,234 tok/s".
_FACTS_WIDTH = 22
_GAP_WIDTH = 2


class ThroughputPanel(Panel):
    """The figure and facts at the left, the curve at the right."""

    def on_mount(self) -> None:
        """The unit stands in the title, where it cannot move the figure."""
        self.border_title = "Output tokens/s"

    def watch_frame(self, frame: Frame) -> None:
        """The lower border carries the peak of what is drawn."""
        rates = [moment.output_tokens_per_s for moment in frame.history.moments]
        peak = max((value for value in rates if value is not None), default=0.0)
        self.border_subtitle = f"peak {bare_rate(peak)} in 2 min" if peak > 0 else ""

    def lines(self) -> list[Content]:
        """Facts and plot, line by line."""
        width, height = self.content_size
        plot_width = width - _FACTS_WIDTH - _GAP_WIDTH
        facts = self._facts(height)
        curve = self._plot(plot_width, height)
        return [
            Content.assemble(fact.pad_right(_FACTS_WIDTH - fact.cell_length + _GAP_WIDTH), row)
            for fact, row in zip(facts, curve, strict=True)
        ]

    def _facts(self, height: int) -> list[Content]:
        snapshot = self.frame.snapshot
        throughput = snapshot.throughput if snapshot else None
        per_s = throughput.output_tokens_per_s if throughput else None
        style = "bold $p50" if per_s else "$dim"
        rows = big_figure(_big_text(per_s), _FACTS_WIDTH, style)
        if height > BIG_FIGURE_HEIGHT + 2:
            rows.append(Content(""))
        prompt = rate(throughput.prompt_tokens_per_s if throughput else None)
        rows.append(_fact("prompt", f"{prompt} tok/s"))
        rows += _totals(throughput)
        return [*rows, *[Content("")] * height][:height]

    def _plot(self, width: int, height: int) -> list[Content]:
        values = self.frame.history.series(lambda moment: moment.output_tokens_per_s, plot_columns(width))
        return plot([Curve(values, "$p50", is_filled=True)], width, height, rate)


def _big_text(per_s: float | None) -> str:
    return GAP if per_s is None else bare_rate(per_s).replace(",", "")


def _fact(label: str, figure: str) -> Content:
    return Content.assemble((label, "$dim"), (f"{figure:>{_FACTS_WIDTH - len(label)}}", "$ink"))


def _totals(throughput: Throughput | None) -> list[Content]:
    if throughput is None:
        return []
    num_prompt = throughput.prompt_tokens
    reused = percent(throughput.prefix_hit_tokens / num_prompt) if num_prompt else GAP
    return [
        _fact("written", f"{count(throughput.output_tokens)} tok"),
        _fact("read", f"{count(num_prompt)} tok"),
        _fact("prefix hits", reused.strip()),
    ]
