"""What the GPU engine is to reach, predicted for an H200, and what a run says of it. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu.steps import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One promise beside what was found; `found` is None where the run has no row for it."""

    promise: str
    found: float | None
    at_least: float

    @property
    def text(self) -> str:
        if self.found is None:
            return "not measured"
        return "pass" if self.found >= self.at_least else "miss"


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    decode = _Cells(rows, "decode")
    share = "share_of_copy"
    ratios = [_ratio(decode.get(f"ours, {p}, graphs off", 1, 512), decode.get(_on(p), 1, 512)) for p in _OURS]
    never = [_ratio(decode.get(_on("bf16"), *cell), decode.get(_on("int8"), *cell)) for cell in decode.cells]
    rates = [decode.get(_on(p), 64, 512, "tokens_per_s") for p in _OURS]
    attention = _Cells(rows, "attention")
    prompts = [attention.get("ours, bf16", 1, 4096, "share_of_matmul")]
    int8_share, bf16_share = (decode.get(_on(p), 1, 512, share) for p in ("int8", "bf16"))
    gain = _ratio(decode.get(_on("bf16"), 1, 512), decode.get(_on("int8"), 1, 512))
    return [
        Verdict(promise="int8 decode at batch 1, share of copy bandwidth", found=int8_share, at_least=0.75),
        Verdict(promise="bf16 decode at batch 1, share of copy bandwidth", found=bf16_share, at_least=0.85),
        Verdict(promise="graphs on against off at batch 1, least", found=_least(ratios), at_least=1.3),
        Verdict(promise="int8 against bf16 at batch 1", found=gain, at_least=1.7),
        Verdict(promise="int8 against bf16 at any batch, least", found=_least(never), at_least=1.0),
        Verdict(promise="prompt attention at 4096, share of matmul", found=_least(prompts), at_least=0.5),
        Verdict(promise="decode at batch 64, tok/s, most", found=_most(rates), at_least=10_000.0),
    ]


_OURS = ("bf16", "int8", "int4")


class _Cells:
    """Rows of one kind by who, batch and context."""

    def __init__(self, rows: Sequence[Row], what: str) -> None:
        self._rows = {(r["by"], r.get("batch", 1), r["context"]): r for r in rows if r["what"] == what}
        self.cells = sorted({(int(str(batch)), int(str(context))) for _, batch, context in self._rows})

    def get(self, by: str, batch: int, context: int, name: str = "ms") -> float | None:
        found = self._rows.get((by, batch, context), {}).get(name)
        return found if isinstance(found, float) else None


def _on(precision: str) -> str:
    return f"ours, {precision}, graphs on"


def _ratio(slower: float | None, faster: float | None) -> float | None:
    return None if slower is None or faster is None else slower / faster


def _least(values: Sequence[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)
