"""Which requests a run consists of: lengths of a mix, or a recorded trace. Knows no server and no clock."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import BadSetting

_PART = re.compile(r"^(\d+):(\d+)(?:@(\d+(?:\.\d+)?))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request to be sent. `at_s` is its time in a trace; `prompt` its own words, else new ones."""

    prompt_tokens: int
    output_tokens: int
    prompt: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class LengthMix:
    """(prompt tokens, output tokens, weight) of each kind of request."""

    parts: tuple[tuple[int, int, float], ...]

    @classmethod
    def parse(cls, text: str) -> "LengthMix":
        """Read `128:64`, or `128:64@3,1024:128@1` with weights. Raises BadSetting."""
        parts = []
        for part in text.split(","):
            match = _PART.match(part.strip())
            if match is None or "0" in (match[1], match[2]):
                raise BadSetting(
                    f"--lengths is {text!r}; write PROMPT:OUTPUT in tokens, several as 128:64@3,1024:128@1",
                    param="lengths",
                )
            parts.append((int(match[1]), int(match[2]), float(match[3] or 1)))
        if not any(weight for _, _, weight in parts):
            raise BadSetting(f"--lengths is {text!r}: one weight must be above 0", param="lengths")
        return cls(tuple(parts))

    def draw(self, count: int, seed: int) -> list[Planned]:
        """Return `count` requests, the same for the same seed."""
        source = random.Random(seed)  # noqa: S311  # repeatable on purpose
        weights = [weight for _, _, weight in self.parts]
        chosen = source.choices(self.parts, weights, k=count)
        return [Planned(prompt_tokens=prompt, output_tokens=output) for prompt, output, _ in chosen]


def read_trace(path: Path) -> list[Planned]:
    """Read JSON lines of `at_s`, `output_tokens`, and `prompt_tokens` or `prompt`; in the order of time.

    Raises BadSetting naming the line.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"the trace {path} cannot be read: {error}", param="trace") from error
    plans = [_planned(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not plans:
        raise BadSetting(f"the trace {path} is empty; it needs one JSON object a line", param="trace")
    return sorted(plans, key=lambda plan: plan.at_s or 0.0)


def _planned(path: Path, number: int, line: str) -> Planned:
    try:
        record = json.loads(line)
        prompt = record.get("prompt")
        plan = Planned(
            prompt_tokens=int(record.get("prompt_tokens", len(prompt.split()) if prompt else 0)),
            output_tokens=int(record["output_tokens"]),
            prompt=prompt,
            at_s=float(record["at_s"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadSetting(
            f"line {number} of {path} is no request ({error}); it needs at_s, output_tokens, and "
            "prompt_tokens or prompt",
            param="trace",
        ) from error
    if plan.prompt_tokens < 1 or plan.output_tokens < 1 or (plan.at_s or 0) < 0:
        raise BadSetting(f"line {number} of {path}: lengths start at 1 and times at 0", param="trace")
    return plan


def poisson_times(count: int, rate: float, seed: int) -> list[float]:
    """Return when `count` independent requests come, `rate` a second on average, the first at 0."""
    source = random.Random(seed)  # noqa: S311  # repeatable on purpose
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += source.expovariate(rate)
    return times


def longest_prompt(plans: Sequence[Planned]) -> int:
    return max(plan.prompt_tokens for plan in plans)
