"""What quantization cost a model, as it was measured, kept beside other state of this machine.

A result belongs to one file and one way of running it, its variant. The key has the file's place, size and
time, so that another file under the same name has none. Knows no model and measures nothing.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance import paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The most that a domain may lose unremarked."""

    perplexity_rise: float  # as a share
    top1_agreement: float  # at least


# The second half of one long text, where it was asked for.
LONG_CONTEXT = "long context"

# Sums are the first to suffer, and hide in a mean over everything: each domain has bounds of its own.
THRESHOLDS = {
    "prose": Threshold(perplexity_rise=0.02, top1_agreement=0.95),
    "code": Threshold(perplexity_rise=0.02, top1_agreement=0.95),
    "arithmetic": Threshold(perplexity_rise=0.03, top1_agreement=0.95),
    LONG_CONTEXT: Threshold(perplexity_rise=0.02, top1_agreement=0.95),
}
# Small models loop by themselves, and one answer more or less turns on a choice between near equals.
_MORE_LOOPS = 2


class DomainQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Of one text, token by token: the quantized model against the reference. Divergences in nats."""

    num_tokens: int
    perplexity: float
    reference_perplexity: float
    mean_kl: float
    p99_kl: float
    top1_agreement: float

    @property
    def perplexity_rise(self) -> float:
        return self.perplexity / self.reference_perplexity - 1


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. `overall` is over the tokens of all domains together."""

    model: str
    variant: str  # what was asked for, as by `variant_of`
    held_as: str  # what that became for this file
    activations: str
    backend: str
    kv_dtype: str
    against: str
    weights_bytes: int
    reference_bytes: int
    overall: DomainQuality
    domains: dict[str, DomainQuality]
    num_prompts: int
    num_loops: int  # greedy answers that ran into a loop
    reference_loops: int  # of the same prompts, in the reference
    measured_s: float  # Unix seconds

    @property
    def failures(self) -> tuple[str, ...]:
        """What is past its threshold, in words; empty where the gate is passed."""
        found = []
        for name, domain in self.domains.items():
            bound = THRESHOLDS[name]
            if not domain.perplexity_rise <= bound.perplexity_rise:
                found.append(
                    f"{name}: perplexity {domain.perplexity_rise:+.1%}, bound {bound.perplexity_rise:+.0%}"
                )
            if not domain.top1_agreement >= bound.top1_agreement:
                found.append(
                    f"{name}: same best token {domain.top1_agreement:.1%}, bound {bound.top1_agreement:.0%}"
                )
        if self.num_loops >= self.reference_loops + _MORE_LOOPS:
            found.append(f"{self.num_loops} answers loop, {self.reference_loops} as {self.against}")
        return tuple(found)


def variant_of(precision: str, activations: str = "auto", kv_dtype: str = "auto") -> str:
    """Return one name for the settings that a model's numbers depend on: `int8`, or `int8+kv-int8`."""
    parts = [precision]
    parts += [] if activations == "auto" else [f"activations-{activations}"]
    parts += [] if kv_dtype == "auto" else [f"kv-{kv_dtype}"]
    return "+".join(parts)


def quality_file(model: Path, variant: str) -> Path:
    """Where the measurement of that file and variant is, or will be. Raises OSError."""
    return paths.state_dir() / "quality" / f"{file_key(model)}-{variant}.json"


def file_key(model: Path) -> str:
    """Return what tells this file from any other, and from itself once changed. Raises OSError."""
    status = model.stat()
    identity = f"{model.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def read_quality(model: Path, variant: str) -> Quality | None:
    """Return the measurement kept of that file and variant; None where there is none that can be read."""
    try:
        return msgspec.json.decode(quality_file(model, variant).read_bytes(), type=Quality)
    except (OSError, msgspec.DecodeError):
        return None


def read_all(model: Path) -> dict[str, Quality]:
    """Return what was measured of a file, by variant."""
    try:
        files = sorted((paths.state_dir() / "quality").glob(f"{file_key(model)}-*.json"))
    except OSError:
        return {}
    names = [file.stem.split("-", 1)[1] for file in files]
    return {name: quality for name in names if (quality := read_quality(model, name))}


def save_quality(model: Path, quality: Quality) -> Path:
    """Keep a measurement, in place of an earlier one. Raises StorageNotWritable."""
    file = quality_file(model, quality.variant)
    paths.ensure_writable(file.parent)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(quality)))
    part.replace(file)
    return file
