"""Step times as measured, and the table they are kept in."""

from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "step_table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Next tokens of `decodes` sequences, each after `decode_context`, and one prompt chunk."""

    decodes: int
    decode_context: int
    chunk: int
    chunk_context: int
    step_s: float
