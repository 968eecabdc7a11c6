"""A step as a flame graph that speedscope.app opens offline: one weighted stack a stage and phase."""

from collections.abc import Sequence

from appliance.profiling.step_profile import FORWARD, StepProfile

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"  # the format's name; nothing is fetched


def speedscope(model_id: str, profiles: Sequence[StepProfile]) -> dict[str, object]:
    """Return a file in the sampled form, one profile a batch size, weights in seconds."""
    names: dict[str, int] = {}
    drawn = [_profile(profile, names) for profile in profiles]
    return {
        "$schema": _SCHEMA,
        "name": model_id,
        "exporter": "inference-appliance",
        "shared": {"frames": [{"name": name} for name in names]},
        "profiles": drawn,
    }


def _profile(profile: StepProfile, names: dict[str, int]) -> dict[str, object]:
    title = f"decode step, batch {profile.batch}, context {profile.context}"
    stacks, weights = [], []
    for stack, seconds in _stacks(profile):
        stacks.append([names.setdefault(name, len(names)) for name in (title, *stack)])
        weights.append(seconds)
    return {
        "type": "sampled",
        "name": title,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": stacks,
        "weights": weights,
    }


def _stacks(profile: StepProfile) -> list[tuple[tuple[str, ...], float]]:
    found: list[tuple[tuple[str, ...], float]] = []
    for stage, seconds in profile.stages.items():
        inside = profile.phases if stage == FORWARD else {}
        found += [((stage, phase), phase_s) for phase, phase_s in inside.items()]
        rest = seconds - sum(inside.values())
        if rest > 0:
            found.append(((stage,), rest))
    return found
