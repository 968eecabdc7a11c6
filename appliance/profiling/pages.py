"""A profile drawn: the roofline with the steps on it, and a page of everything. Computes nothing new."""

import math

from appliance.bench.html_page import page, plots, table
from appliance.bench.svg_plot import Axis, Series, plot
from appliance.profiling.model_profile import ModelProfile
from appliance.profiling.step_profile import FORWARD, StepProfile

_ROOF_POINTS = 60
# A file of its own has no page whose style would colour it.
_STYLE = "<style>text{font:12px sans-serif;fill:#1d2428}.grid{stroke:#d7dde0}</style>"


def roofline(result: ModelProfile, *, is_file: bool = False) -> str:
    """Return an SVG: operations a second over operations a byte, the machine's roof and each step."""
    points = [
        (traffic.intensity, traffic.operations / step.forward_s / 1e9) for step, traffic, _ in result.steps
    ]
    roof = _roof(result, [x for x, _ in points])
    dots = [
        Series(name=f"batch {step.batch}", points=(point,), is_line=False)
        for (step, _, _), point in zip(result.steps, points, strict=True)
    ]
    x, y = Axis(label="operations per byte", is_log=True), Axis(label="GOP/s", is_log=True)
    drawn = plot("Roofline of the decode step", x, y, [Series(name="this machine", points=roof), *dots])
    return drawn.replace(">", f">{_STYLE}", 1) if is_file else drawn


def to_html(model_id: str, result: ModelProfile) -> str:
    sections = [plots([roofline(result)])]
    for step, _, verdict in result.steps:
        sections += [
            f"<h2>Batch {step.batch}</h2><p><b>{verdict.words}</b>: {verdict.remedy}</p>",
            table(stage_rows(step)),
        ]
    if result.operators:
        rows = [("operator", "calls", "ms"), *((n, str(c), f"{s * 1e3:.2f}") for n, c, s in result.operators)]
        sections += ["<h2>Operators</h2>", table(rows)]
    return page(f"Profile of {model_id}", f"{result.backend_name}, {result.precision} weights", sections)


def stage_rows(step: StepProfile) -> list[tuple[str, str, str]]:
    """Return one row a stage, the forward pass followed by its phases."""
    rows = [("stage", "ms", "share of the step")]
    for stage, seconds in step.stages.items():
        rows.append((stage, f"{seconds * 1e3:.3f}", f"{seconds / step.step_s:.1%}"))
        if stage == FORWARD:
            rows += [(f"- {p}", f"{s * 1e3:.3f}", f"{s / step.step_s:.1%}") for p, s in step.phases.items()]
    return rows


def _roof(result: ModelProfile, intensities: list[float]) -> tuple[tuple[float, float], ...]:
    bandwidth, peak = result.limits.bytes_per_s, result.limits.operations_per_s
    if bandwidth is None:
        return ()
    low, high = min(intensities) / 2, max(intensities) * 4
    step = math.log(high / low) / (_ROOF_POINTS - 1)
    xs = [low * math.exp(step * index) for index in range(_ROOF_POINTS)]
    return tuple((x, min(x * bandwidth, peak or math.inf) / 1e9) for x in xs)
