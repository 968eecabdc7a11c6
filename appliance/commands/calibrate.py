"""`appliance calibrate`: which matrices of a model to keep in 16 bits. Prints; measures nothing itself."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.commands.evaluate import quiet_settings, show_step
from appliance.errors import BadSetting, StorageNotWritable

if TYPE_CHECKING:
    from appliance.eval.calibration import Calibration, MatrixReport

_BAR_CHARS = 24
_ROWS = 20
_HEADINGS = "matrix           MB   reach    error   scaled    cosine  static     effect  kept"


def calibrate(args: argparse.Namespace) -> int:
    """Measure, choose, print and write the precision map. Raises what loading raises, and BadSetting."""
    from appliance.matrix_losses import save_losses
    from appliance.precision_map import write_map
    from appliance.serve import find_model

    share, error = _number(args.size, "--size", most=1.0), _number(args.error, "--error", most=None)
    prompts = [] if args.from_traffic else read_prompts(Path(args.prompts))
    settings = quiet_settings(args)
    found = find_model(settings, lambda text, _: show_step(text))
    traffic = read_traffic(found.model_id, is_needed=args.from_traffic)
    from appliance.eval.session import calibrate_model, compare_with_traffic

    if prompts and traffic:
        for warning in compare_with_traffic(found, prompts, traffic):
            print(f"warning: the set is biased: {warning}", file=sys.stderr)

    result = calibrate_model(
        settings,
        found,
        prompts or traffic,
        size_share=0.55 if share is None else share,
        error=error,
        is_scaling=not args.no_scaling,
        is_traffic=not prompts,
        report=show_step,
    )
    show_step("")
    print("\n".join(told(result, num_rows=None if args.all else _ROWS)))
    if args.dry_run:
        return 0
    try:
        file = write_map(found.path, result.precision_map)
    except OSError as reason:
        raise StorageNotWritable(
            f"the precision map cannot be written beside {found.path}: {reason.strerror}"
        ) from reason
    save_losses(found.path, result.losses)
    print(f"written: {file}; `--precision int8-mixed` uses it")
    return 0


def read_prompts(file: Path) -> list[str]:
    """Return a file's prompts, which empty lines separate. Raises BadSetting."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"--prompts {file} cannot be read: {error}", param="prompts") from error
    prompts = [part for part in text.split("\n\n") if part.strip()]
    if not prompts:
        raise BadSetting(f"--prompts {file} has no text; put an empty line between prompts", param="prompts")
    return prompts


def read_traffic(model_id: str, *, is_needed: bool) -> list[str]:
    """Return the prompts recorded of a model, none where there are none. Raises BadSetting if needed."""
    from appliance.observe.prompt_log import read_prompts as read_recorded
    from appliance.paths import prompts_file

    file = prompts_file(model_id)
    try:
        recorded = read_recorded(file)
    except FileNotFoundError:
        recorded = []
    except OSError as error:
        raise BadSetting(f"the recorded prompts {file} cannot be read: {error.strerror}") from error
    if is_needed and not recorded:
        raise BadSetting(
            f"no prompts of {model_id} are recorded in {file}; `appliance serve --record-prompts` keeps them",
            param="from-traffic",
        )
    return recorded


def told(result: "Calibration", *, num_rows: int | None) -> list[str]:
    """Return the lines that a person reads: the worst matrices first, each with a bar of its effect."""
    worst = sorted(result.matrices, key=lambda m: m.effect, reverse=True)
    largest = worst[0].effect or 1.0
    lines = [
        f"{len(worst)} matrices over {result.num_tokens} tokens",
        "effect: nats per token that answers move when it alone is INT8",
        "static: with inputs in INT8 too, the error by a scale per token over that by one for all",
        _HEADINGS,
    ]
    lines += [_row(m, is_kept=m.name in result.kept, largest=largest) for m in worst[:num_rows]]
    if num_rows is not None and len(worst) > num_rows:
        lines.append(f"and {len(worst) - num_rows} of less effect; --all prints them")
    lines.append(
        f"{len(result.kept)} kept in 16 bits: {result.size_share:.1%} of the matrices' 16-bit bytes, "
        f"effects of the others {result.remaining_effect:.5f} of {sum(m.effect for m in worst):.5f}"
    )
    num_scaled = sum(m.scales is not None for m in worst)
    lines.append(
        f"{num_scaled} with scaled inputs; without scales the others' effects would be "
        f"{result.unscaled_effect:.5f}"
    )
    return [*lines, _static_told(result)]


def _static_told(result: "Calibration") -> str:
    num_wins = len(result.static_wins)
    if not num_wins:
        name, gain = result.best_static
        best = f": at best {name} with {gain:.2f}x" if name else ""
        return (
            f"no inputs lose less by one scale than by one per token{best}; none is written; where inputs "
            f"are INT8 as well their effects are {result.input_effect:.5f}, by one scale each "
            f"{result.all_static_effect:.5f}"
        )
    return (
        f"inputs of {num_wins} by one scale; where inputs are INT8 as well their effects are "
        f"{result.static_effect:.5f}, with a scale per token {result.input_effect:.5f}"
    )


def _row(matrix: "MatrixReport", *, is_kept: bool, largest: float) -> str:
    error, scaled = matrix.error, matrix.scaled
    best = scaled or error
    static = f"{matrix.static.gain:.2f}x" if matrix.static else "-"
    bar = "#" * round(_BAR_CHARS * max(matrix.effect, 0.0) / largest)
    return (
        f"{matrix.name:12}{matrix.num_bytes / 1e6:>7.2f}{matrix.reach:>8.0f}{error.relative:>9.4f}"
        f"{f'{scaled.relative:.4f}' if scaled else '-':>9}{best.cosine:>10.6f}{static:>8}"
        f"{matrix.effect:>11.7f}  {'16-bit' if is_kept else 'int8':7}{bar}"
    ).rstrip()


def _number(text: str | None, flag: str, *, most: float | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value > 0 or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most:g}"
        raise BadSetting(f"{flag} is {text!r}; a number above 0{limit} is needed", param=flag.lstrip("-"))
    return value
