"""Step times as measured, and the costs fitted to them that the simulation charges. Knows no scheduler."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from appliance.engine.batch import Batch, ScheduledSequence

TABLE = Path(__file__).parent / "step_table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Next tokens of `decodes` sequences, each after `decode_context`, and one prompt chunk."""

    decodes: int
    decode_context: int
    chunk: int
    chunk_context: int
    step_s: float

    @property
    def load(self) -> tuple[float, ...]:
        pairs = self.chunk * (self.chunk_context + self.chunk / 2)
        read_back = self.decodes * self.decode_context + (self.chunk_context if self.chunk else 0)
        return (1.0, self.chunk, self.decodes, read_back, pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step: fixed, and for each prompt token, stream, token read back and prompt pair."""

    machine: str
    step_s: float
    prompt_token_s: float
    stream_s: float
    context_s: float
    pair_s: float
    mean_error: float  # of the fit, relative

    def of_streams(self, num_streams: int, context: int) -> float:
        """What a step of next tokens alone takes, with so many tokens read back."""
        return self.step_s + num_streams * self.stream_s + context * self.context_s

    def of(self, batch: Batch) -> float:
        """What a step of this batch takes."""
        total_s = self.step_s
        total_s += sum(map(self._of_sequence, batch.sequences))
        if batch.slice is not None:
            total_s += batch.slice.share * sum(map(self._of_sequence, batch.slice.sequences))
        return total_s

    def _of_sequence(self, scheduled: ScheduledSequence) -> float:
        num_new, context = len(scheduled.new_token_ids), scheduled.num_computed_tokens
        own_s = num_new * (self.prompt_token_s + self.pair_s * (context + num_new / 2))
        return self.context_s * context + (self.stream_s if num_new == 1 else own_s)


@cache
def fitted_costs(table: Path = TABLE) -> StepCosts:
    """Least squares on relative errors: a short step matters as much as a long one."""
    stored = json.loads(table.read_text(encoding="utf-8"))
    steps = [MeasuredStep(**step) for step in stored["steps"]]
    measured = np.array([step.step_s for step in steps])
    loads = np.array([step.load for step in steps])
    costs = np.linalg.lstsq(loads / measured[:, None], np.ones(len(steps)), rcond=None)[0]
    errors = np.abs(loads @ costs / measured - 1.0)
    fixed, token, stream, context, pair = (max(0.0, float(cost)) for cost in costs)
    return StepCosts(
        machine=stored["machine"],
        step_s=fixed,
        prompt_token_s=token,
        stream_s=stream,
        context_s=context,
        pair_s=pair,
        mean_error=float(errors.mean()),
    )
