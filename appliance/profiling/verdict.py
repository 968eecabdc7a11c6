"""What bounds a step, in words, and what would help. Knows shares; measures nothing."""

from dataclasses import dataclass

from appliance.profiling.step_profile import FORWARD, StepProfile

# From here on work around the forward pass costs more than any kernel could win back.
_OVERHEAD_SHARE = 0.35
# A step that reaches so much of a limit is bound by it; the rest is what no code gets.
_NEAR_LIMIT = 0.5
_TEXT_STAGES = ("detokenize", "encode chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a step must move and compute at the least."""

    num_bytes: float
    operations: float

    @property
    def intensity(self) -> float:
        return self.operations / self.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this machine does at best, per second; None where it could not be measured."""

    bytes_per_s: float | None = None
    operations_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`memory_share` and `compute_share` are parts of the limits that the forward pass reached."""

    words: str
    remedy: str
    memory_share: float | None = None
    compute_share: float | None = None


def judge(profile: StepProfile, traffic: Traffic, limits: Limits) -> Verdict:
    """Name the one thing that most of the step waits for."""
    memory = _share(traffic.num_bytes, profile.forward_s, limits.bytes_per_s)
    compute = _share(traffic.operations, profile.forward_s, limits.operations_per_s)
    words, remedy = _around(profile) or _forward(profile, memory, compute)
    return Verdict(words=words, remedy=remedy, memory_share=memory, compute_share=compute)


def _share(amount: float, seconds: float, limit: float | None) -> float | None:
    return None if limit is None else amount / seconds / limit


def _around(profile: StepProfile) -> tuple[str, str] | None:
    """Judge the stages around the forward pass, where they take too much."""
    others = {name: seconds for name, seconds in profile.stages.items() if name != FORWARD}
    total = sum(others.values())
    if total < _OVERHEAD_SHARE * profile.step_s:
        return None
    worst = max(others, key=lambda name: others[name])
    share = f"{total / profile.step_s:.0%} of the step is around the forward pass, most of it '{worst}'"
    if worst in _TEXT_STAGES:
        return f"tokenizer-bound: {share}", "fewer, longer chunks; a faster processor core"
    if worst == "sample":
        return f"sampler-bound: {share}", "top_k or temperature 0 spare whole vocabularies; fewer logprobs"
    return (
        f"launch-bound: {share}",
        "larger batches share it; a faster processor core; a larger model hides it",
    )


def _forward(profile: StepProfile, memory: float | None, compute: float | None) -> tuple[str, str]:
    slowest = max(profile.phases, key=lambda name: profile.phases[name], default="")
    most = f"; the longest phase is '{slowest}'" if slowest else ""
    if memory is None and compute is None:
        return f"bound by the forward pass{most}", "measure the machine's limits: install a C++ compiler"
    if (memory or 0.0) >= (compute or 0.0):
        words = f"memory-bound at {memory:.0%} of the limit"
        if (memory or 0.0) > 1:
            words += " (caches hold a part of the weights)"
        if (memory or 0.0) < _NEAR_LIMIT:
            words = f"nearest to memory, at {memory:.0%} of the limit: threads wait for others"
            return (
                words + most,
                "end other programs on this machine; check `appliance doctor` for a CPU quota",
            )
        return words + most, "fewer bytes: int4 weights, INT8 KV; larger batches; faster memory"
    words = f"compute-bound at {compute:.0%} of the limit"
    if (compute or 0.0) < _NEAR_LIMIT:
        words = f"nearest to compute, at {compute:.0%} of the limit: kernels leave the rest"
    return words + most, "more cores or wider instructions (VNNI, AVX-512, a GPU); --activations int8"
