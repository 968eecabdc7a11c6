"""`appliance eval`: what a precision costs a model, by kind of text. Prints; measures nothing itself."""

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from appliance.commands.settings_args import settings_from
from appliance.logs import configure_logs

if TYPE_CHECKING:
    from appliance.config import Settings
    from appliance.quality import DomainQuality, Quality

EXIT_PAST_BOUNDS = 1


def evaluate(args: argparse.Namespace) -> int:
    """Measure, keep and print; EXIT_PAST_BOUNDS where a bound is passed. Raises what loading raises."""
    from appliance.serve import find_model

    settings = quiet_settings(args)
    found = find_model(settings, lambda text, _: show_step(text))
    from appliance.eval.session import measure

    quality = measure(settings, found, args.against, show_step, long_context=args.long_context)
    show_step("")
    if args.json:
        _print_json(quality)
    else:
        print("\n".join(told(quality)))
    return EXIT_PAST_BOUNDS if quality.failures else 0


def quiet_settings(args: argparse.Namespace) -> "Settings":
    """The settings of a command whose own lines are to be read: logs below warnings are off."""
    settings = settings_from(args)
    configure_logs(as_json=settings.json_logs)
    logging.getLogger().setLevel(logging.WARNING)
    return settings


def show_step(text: str) -> None:
    """Say on a terminal what goes on, in place of what was said before."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def told(quality: "Quality") -> list[str]:
    """Return the lines that a person reads."""
    share = quality.weights_bytes / quality.reference_bytes
    held = f"{quality.held_as} on {quality.backend}, KV {quality.kv_dtype}"
    lines = [
        f"{quality.model} as {quality.variant} ({held}) against {quality.against}: {share:.0%} of its bytes",
        f"{'':12}{'tokens':>7}{'perplexity':>12}{'rise':>9}{'mean KL':>10}{'P99 KL':>9}{'same best':>11}",
    ]
    lines += [_row(name, domain) for name, domain in quality.domains.items()]
    lines.append(_row("overall", quality.overall))
    lines.append(
        f"loops in {quality.num_loops} of {quality.num_prompts} greedy answers, "
        f"{quality.reference_loops} in the reference's"
    )
    return [*lines, *(f"past its bound: {failure}" for failure in quality.failures)]


def _row(name: str, domain: "DomainQuality") -> str:
    return (
        f"{name:12}{domain.num_tokens:>7}{domain.perplexity:>12.3f}{domain.perplexity_rise:>+9.2%}"
        f"{domain.mean_kl:>10.5f}{domain.p99_kl:>9.4f}{domain.top1_agreement:>11.2%}"
    )


def _print_json(quality: "Quality") -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(quality)).decode())
