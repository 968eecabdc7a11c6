"""What is promised, as ratios of two figures of one run. Knows no measuring."""

from dataclasses import dataclass
from statistics import median

from benchmarks.engines import (
    LLAMA_Q4_0,
    LLAMA_Q4_1,
    LLAMA_Q8_0,
    OPENVINO,
    OURS,
    OURS_1B,
    OURS_8BIT,
)
from benchmarks.http_load import ALLOWED, OUTPUT_RATE, WITHOUT_POOL, WORST_GAP, http_cell
from benchmarks.limits import MACHINE, READ_GB_S
from benchmarks.quality import LOGIT_ERROR, PERPLEXITY
from benchmarks.raw import WEIGHT_GB_S
from benchmarks.results import Part, Results
from benchmarks.servers import LLAMA_HTTP, OURS_HTTP

_BATCH_1 = "batch 1, context 128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`ours` over `theirs`, each (engine, cell) of one part, has to be at least or at most `limit`."""

    measure: str
    part: str
    ours: tuple[str, str]
    theirs: tuple[str, str]
    limit: float
    is_at_least: bool = True
    limit_text: str = ""

    @property
    def text(self) -> str:
        sign = "≥" if self.is_at_least else "≤"
        return self.limit_text or f"{sign} {self.limit:g}x"

    def ratios(self, part: Part) -> list[float]:
        """Round by round: both were measured close together in each."""
        pairs = zip(part.values(*self.ours), part.values(*self.theirs), strict=False)
        return [ours / theirs for ours, theirs in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A bar beside what was measured; all None where it was not."""

    bar: Bar
    ours: float | None
    theirs: float | None
    ratios: list[float]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def text(self) -> str:
        if self.ratio is None:
            return "not measured"
        passes = self.ratio >= self.bar.limit if self.bar.is_at_least else self.ratio <= self.bar.limit
        return "pass" if passes else "**miss**"


def judge(results: Results) -> list[Verdict]:
    """Every bar, in the order of the table."""
    verdicts = []
    for bar in BARS:
        part = results.part(bar.part)
        verdicts.append(
            Verdict(
                bar=bar,
                ours=part.median(*bar.ours),
                theirs=part.median(*bar.theirs),
                ratios=bar.ratios(part),
            )
        )
    return verdicts


def _same(measure: str, part: str, cell: str, ours: str, theirs: str, limit: float) -> Bar:
    """A bar where both have the same cell and more is better."""
    return Bar(measure=measure, part=part, ours=(ours, cell), theirs=(theirs, cell), limit=limit)


def _http(measure: str, clients: int, name: str, limit: float, *, is_at_least: bool) -> Bar:
    cell = http_cell(clients, name)
    return Bar(
        measure=measure,
        part="http",
        ours=(OURS_HTTP, cell),
        theirs=(LLAMA_HTTP, cell),
        limit=limit,
        is_at_least=is_at_least,
    )


BARS = (
    _same("decode, batch 1, context 128, tok/s", "decode", _BATCH_1, OURS, LLAMA_Q4_1, 2.8),
    _same("decode, batch 1, context 128, tok/s", "decode", _BATCH_1, OURS, LLAMA_Q4_0, 1.9),
    _same("decode, batch 1, context 2048, tok/s", "decode", "batch 1, context 2048", OURS, LLAMA_Q4_1, 4.0),
    _same("decode, batch 1, context 128, 8-bit, tok/s", "decode", _BATCH_1, OURS_8BIT, LLAMA_Q8_0, 1.8),
    _same("decode, batch 8, tok/s", "decode", "batch 8, context 128", OURS, LLAMA_Q4_0, 4.0),
    _same("decode, batch 32, tok/s", "decode", "batch 32, context 128", OURS, LLAMA_Q4_0, 3.5),
    _same("prefill 512, tok/s", "prefill", "prefill 512", OURS, LLAMA_Q4_0, 2.2),
    _same("prefill 2048, tok/s", "prefill", "prefill 2048", OURS, LLAMA_Q4_0, 2.0),
    _same("prefill 512, tok/s", "prefill", "prefill 512", OURS, OPENVINO, 1.5),
    _http("HTTP output, 1 client, tok/s", 1, OUTPUT_RATE, 2.0, is_at_least=True),
    _http("HTTP output, 8 clients, tok/s", 8, OUTPUT_RATE, 3.0, is_at_least=True),
    _http("HTTP output, 32 clients, tok/s", 32, OUTPUT_RATE, 3.0, is_at_least=True),
    _http("TTFT P50, 32 clients, ms", 32, "TTFT P50, ms", 0.33, is_at_least=False),
    _http("worst gap between chunks, 32 clients, ms", 32, WORST_GAP, 0.5, is_at_least=False),
    Bar(
        measure="bandwidth used by decode, batch 1, 1.1B shape, 8-bit, GB/s",
        part="decode",
        ours=(OURS_1B, WEIGHT_GB_S),
        theirs=(MACHINE, READ_GB_S),
        limit=0.85,
        limit_text="≥ 85%",
    ),
    Bar(
        measure="resident memory after load, without the pool, MB",
        part="memory",
        ours=(OURS_HTTP, WITHOUT_POOL),
        theirs=(OURS_HTTP, ALLOWED),
        limit=1.0,
        is_at_least=False,
        limit_text="≤ 1.3x file + 250 MB",
    ),
    Bar(
        measure="mean relative logit error against float32, %",
        part="quality",
        ours=(OURS, LOGIT_ERROR),
        theirs=(LLAMA_Q4_1, LOGIT_ERROR),
        limit=1.0,
        is_at_least=False,
    ),
    Bar(
        measure="perplexity on a fixed text",
        part="quality",
        ours=(OURS, PERPLEXITY),
        theirs=(LLAMA_Q4_1, PERPLEXITY),
        limit=1.01,
        is_at_least=False,
    ),
)
