"""Writes results into docs/performance.md, between markers: what a person wrote around them stays."""

from pathlib import Path
from statistics import median

from benchmarks.bars import Verdict, judge
from benchmarks.engines import LLAMA_Q4_0, LLAMA_Q4_1, OURS, OURS_INT8, REFERENCE
from benchmarks.http_load import FILE, LOADS, OUTPUT_RATE, RESIDENT, WITHOUT_POOL, WORST_GAP, http_cell
from benchmarks.limits import MACHINE, PRODUCTS_GOP_S, READ_GB_S
from benchmarks.plot import bar_chart
from benchmarks.quality import AGREEMENT, DIVERGENCE, LOGIT_ERROR, PERPLEXITY
from benchmarks.raw import CELLS, USED_GOP_S, WEIGHT_GB_S
from benchmarks.results import Part, Results
from benchmarks.servers import LLAMA_HTTP, OURS_HTTP

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_NEW_FILE = f"""# Performance

Measured by `python -m benchmarks.cpu`, which installs the peers, runs everything and writes what stands
between the two markers below. All engines use the same model file, or the same weights requantized by
llama.cpp itself where a row names another type, and the same number of threads. Only one works at a time;
every round gives each its turn at every cell, so that what disturbs one disturbs all, and a ratio is the
median of the rounds' own.

- Decode counts the engine's call alone: for us with the choice of each token, for llama.cpp (`llama_decode`
  over many sequences) without it, and with flash attention on or off, whichever is faster in that cell.
- Q4_0 is llama.cpp's fastest 4-bit type. Made from the Q4_1 file it loses much of the model's quality, as
  the last table shows: it is in the race for speed alone.
- Through HTTP both servers get prompts of random tokens that they have never seen. A first token's time runs
  from the request's last byte to the first text; percentiles are nearest-rank, over requests.
- Resident memory is read when the server is ready and has answered nothing.

{BEGIN}
{END}
"""
_NONE = "—"


def write_report(results: Results, document: Path, plot: Path) -> None:
    """Replace what is between the markers, and the plot. Makes the document where there is none."""
    document.parent.mkdir(parents=True, exist_ok=True)
    text = document.read_text(encoding="utf-8") if document.is_file() else _NEW_FILE
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n\n".join(_sections(results, plot.name))
    document.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
    plot.write_text(bar_chart(results), encoding="utf-8")


def _sections(results: Results, plot_name: str) -> list[str]:
    sections = [f"Machine: {results.machine}. {_dates(results)}", f"![Speed beside the peers]({plot_name})"]
    sections += ["### Promised and measured", ratio_table(judge(results))]
    for name, title in (("decode", "Decode, tokens per second"), ("prefill", "Prefill, tokens per second")):
        if name in results.parts:
            sections += [f"### {title}", _engine_table(results.part(name), name)]
            sections += [_limits_table(results.part(name))]
    if "http" in results.parts:
        sections += ["### Through HTTP: 128 tokens in, 64 out", _http_table(results.part("http"))]
    if "memory" in results.parts:
        sections += ["### Memory of the server after loading", _memory_table(results.part("memory"))]
    if "quality" in results.parts:
        sections += ["### Against float32 on the same Q4_1 file", _quality_table(results.part("quality"))]
    notes = [note for part in results.parts.values() for note in part.notes]
    if notes:
        sections += ["### Notes of the run", "\n".join(f"- {note}" for note in notes)]
    return sections


def _dates(results: Results) -> str:
    told = [f"{name} {part.date}, {part.rounds} rounds" for name, part in results.parts.items()]
    return "Median (least to most) over the rounds of one run; " + "; ".join(told) + "."


def ratio_table(verdicts: list[Verdict]) -> str:
    """The bars: ratios are medians over rounds, both sides of a ratio measured close together."""
    rows = []
    for verdict in verdicts:
        bar, ratios = verdict.bar, verdict.ratios
        against = f"{bar.theirs[0]}" if bar.theirs[0] != bar.ours[0] else bar.theirs[1]
        spread = f"{verdict.ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else _NONE
        ours, theirs = _figure(verdict.ours), _figure(verdict.theirs)
        rows.append([bar.measure, bar.ours[0], against, ours, theirs, spread, bar.text, verdict.text])
    head = ["measure", "ours", "against", "ours is", "theirs is", "ratio", "bar", "result"]
    return _table(head, rows)


def _engine_table(part: Part, name: str) -> str:
    cells = list(dict.fromkeys(c.name for cells in CELLS.values() for c in cells if c.part == name))
    rows = [
        [engine, *(_spread(part.values(engine, cell)) for cell in cells)]
        for engine in CELLS
        if any(part.values(engine, cell) for cell in cells)
    ]
    return _table(["engine", *cells], rows)


def _limits_table(part: Part) -> str:
    """Shares of what the machine could do at best."""
    rows = []
    for used, limit in ((WEIGHT_GB_S, READ_GB_S), (USED_GOP_S, PRODUCTS_GOP_S)):
        for engine in CELLS:
            values, limits = part.values(engine, used), part.values(MACHINE, limit)
            if values and limits:
                share = median(value / best for value, best in zip(values, limits, strict=False))
                rows.append([engine, used, _spread(values), _spread(limits), f"{100 * share:.0f}%"])
    return _table(["engine", "measure", "used", "the machine at best", "share"], rows)


def _http_table(part: Part) -> str:
    measures = (
        OUTPUT_RATE,
        *(f"{name} P{percent}, ms" for name in ("TTFT", "TPOT") for percent in (50, 95, 99)),
        WORST_GAP,
    )
    rows = [
        [server, str(clients), *(_spread(part.values(server, http_cell(clients, m))) for m in measures)]
        for clients, _ in LOADS
        for server in (OURS_HTTP, LLAMA_HTTP)
    ]
    return _table(["server", "clients", *measures], rows)


def _memory_table(part: Part) -> str:
    cells = (FILE, RESIDENT, WITHOUT_POOL)
    rows = [
        [server, *(_spread(part.values(server, cell)) for cell in cells)]
        for server in (OURS_HTTP, LLAMA_HTTP)
    ]
    return _table(["server", *cells], rows)


def _quality_table(part: Part) -> str:
    cells = (LOGIT_ERROR, DIVERGENCE, AGREEMENT, PERPLEXITY)
    rows = [
        [engine, *(_precise(part.median(engine, cell)) for cell in cells)]
        for engine in (REFERENCE, OURS, OURS_INT8, LLAMA_Q4_1, LLAMA_Q4_0)
    ]
    return _table(["engine", *cells], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: list[float]) -> str:
    if not values:
        return _NONE
    middle, low, high = (_figure(value) for value in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _figure(value: float | None) -> str:
    """Three digits at least, no false ones."""
    if value is None:
        return _NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _precise(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"
