"""Puts a scheduler together from the policies that are on. Knows them all; decides nothing itself."""

from dataclasses import dataclass

from appliance.engine.admission_window import AdmissionWindows
from appliance.engine.block_pool import BlockPool
from appliance.engine.fresh_blocks import CommittedMemory, FreshBlocks
from appliance.engine.headroom import Headroom
from appliance.engine.policy import FairOrder
from appliance.engine.scheduler import Scheduler
from appliance.engine.step_budget import AdaptiveBudget, FixedBudget
from appliance.engine.swap_space import HostMemory
from appliance.engine.triage import SHORT_WORK_TOKENS, Triage


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Which policies are on, and how far they go. Each one is off at the value named last."""

    short_work_tokens: int = SHORT_WORK_TOKENS  # the short lane's most expected work; 0: one lane
    uses_classes: bool = True  # False: every sequence is silver
    uses_windows: bool = True  # False: classes admit at any time
    stream_slowdown: float = 1.88  # times that prompts may stretch the mean step of streams; 0: any
    headroom: float = 0.25  # share of the pool that admissions leave to the running; 0: a block each
    patience_s: float = 30.0  # a longer wait is made good whatever class and lane; inf: never


ALL_OFF = Policies(
    short_work_tokens=0,
    uses_classes=False,
    uses_windows=False,
    stream_slowdown=0.0,
    headroom=0.0,
    patience_s=float("inf"),
)


def make_scheduler(
    pool: BlockPool,
    policies: Policies,
    *,
    max_sequences: int,
    step_tokens: int,
    context_length: int,
    queue_limit: int = 256,
    enable_prefix_cache: bool = True,
    host: HostMemory | None = None,
    num_layers: int = 0,
    memory: CommittedMemory | None = None,
) -> Scheduler:
    """Return a scheduler over `pool`; with ALL_OFF it is first come, first served in full steps.

    `num_layers` is told where the runner can leave off between two of them, `memory` where the pool's is
    committed as it is used.
    """
    windows = AdmissionWindows() if policies.uses_classes and policies.uses_windows else None
    slowdown = policies.stream_slowdown
    budget = (
        AdaptiveBudget(step_tokens, slowdown=slowdown, num_layers=num_layers)
        if slowdown
        else FixedBudget(step_tokens)
    )
    if memory is not None:
        pool.is_dear = FreshBlocks(memory, budget.prompt_s, pool.block_size).is_dear
    return Scheduler(
        pool,
        max_sequences=max_sequences,
        step_tokens=step_tokens,
        context_length=context_length,
        enable_prefix_cache=enable_prefix_cache,
        order=FairOrder(patience_s=policies.patience_s, queue_limit=queue_limit, windows=windows),
        budget=budget,
        num_layers=num_layers,
        headroom=Headroom(policies.headroom),
        host=host,
        triage=Triage(short_work_tokens=policies.short_work_tokens, uses_classes=policies.uses_classes),
    )
