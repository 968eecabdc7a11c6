"""Has the runner run steps, and makes of whatever it raises a failure of each sequence. Knows no queue."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.batch import (
    Batch,
    FailureKind,
    LeadingRunner,
    Pending,
    Runner,
    SequenceOutput,
    StepFailure,
    StepResult,
)
from appliance.errors import DeviceLost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """A step that was started, or why it could not be."""

    batch: Batch
    pending: Pending | None = None
    error: Exception | None = None


class StepRuns:
    """Launches steps and collects them in the same order. `on_lost` hears why nothing will run any more."""

    def __init__(self, runner: Runner, on_lost: Callable[[str], None]) -> None:
        self._runner = runner
        self._leading = runner if isinstance(runner, LeadingRunner) else None
        self._on_lost = on_lost
        self._num_failures_in_a_row = 0

    def launch(self, batch: Batch) -> LaunchedStep:
        try:
            return LaunchedStep(batch=batch, pending=self._runner.launch(batch))
        except Exception as error:  # whatever a device may raise ends this step's sequences, not the engine
            return LaunchedStep(batch=batch, error=error)

    def leads(self, step: LaunchedStep) -> bool:
        """Whether `launch_next` may start the step after this one now."""
        return self._leading is not None and step.pending is not None and self._leading.leads(step.pending)

    def launch_next(self, step: LaunchedStep, batch: Batch) -> LaunchedStep | None:
        """Start the step after one that `leads`; None where it was not started."""
        assert self._leading is not None
        assert step.pending is not None
        try:
            pending = self._leading.launch_next(step.pending, batch)
        except Exception as error:  # as above
            return LaunchedStep(batch=batch, error=error)
        return None if pending is None else LaunchedStep(batch=batch, pending=pending)

    def collect(self, step: LaunchedStep) -> StepResult:
        if step.pending is None:
            assert step.error is not None
            return self._failed(step.batch, step.error)
        try:
            result = self._runner.collect(step.pending)
            _check_result(step.batch, result)
        except Exception as error:  # as above
            return self._failed(step.batch, error)
        self._num_failures_in_a_row = 0
        return result

    def _failed(self, batch: Batch, error: Exception) -> StepResult:
        self._num_failures_in_a_row += 1
        if isinstance(error, DeviceLost):
            self._on_lost(error.message)
        is_first = self._num_failures_in_a_row == 1
        logger.error(
            "a step of %d sequences failed, %d in a row: %r",
            len(batch.every_sequence),
            self._num_failures_in_a_row,
            error,
            exc_info=error if is_first else None,  # once is enough: a broken device fails every step alike
        )
        failure = runner_failure(error)
        outputs = (SequenceOutput(sequence_id=s.sequence_id, failure=failure) for s in batch.every_sequence)
        return StepResult(outputs=tuple(outputs))


def runner_failure(error: Exception) -> StepFailure:
    message = error.message if isinstance(error, DeviceLost) else f"{type(error).__name__}: {error}"
    return StepFailure(kind=FailureKind.RUNNER, message=message)


def _check_result(batch: Batch, result: StepResult) -> None:
    """Raise ValueError unless every sequence got its output, in order, a token just where one was due."""
    if [s.sequence_id for s in batch.every_sequence] != [o.sequence_id for o in result.outputs]:
        raise ValueError("the runner's outputs are not those of the batch, in its order")
    num_finished = len(batch.finished_sequences)
    for i, (scheduled, output) in enumerate(zip(batch.every_sequence, result.outputs, strict=True)):
        is_due = scheduled.sampling is not None and i < num_finished
        if output.failure is None and is_due != bool(output.token_ids):
            problem = "chose no token" if is_due else "chose a token inside the prompt"
            raise ValueError(f"the runner {problem} for sequence {scheduled.sequence_id}")
