"""How many KV pages fit into memory, and what to do where too few do. Knows neither tensors nor queues."""

from dataclasses import dataclass

from appliance.errors import NotEnoughMemory
from appliance.runtime.human_size import human_size
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.kv_remedies import NarrowerWeights, remedies, said


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    """How large the pool is, and the arithmetic that led there.

    `warning` says what would help where no sequence can reach its full length; else it is empty.
    """

    num_blocks: int
    block_bytes: int
    explanation: str
    warning: str = ""

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


def plan_kv(demand: KVDemand, narrower: tuple[NarrowerWeights, ...] = ()) -> KVPlan:
    """Size the pool from the memory free after loading.

    Without a wish: what is free less the reserve, but no more than `max_sequences` full contexts can use.
    Raises NotEnoughMemory when not even a short conversation fits, or a wish exceeds what is free; it names
    each setting that would do. `narrower` are precisions in which the weights would leave more.
    """
    if not demand.is_met:
        raise NotEnoughMemory(_refusal(demand, narrower))
    return KVPlan(
        num_blocks=demand.num_blocks,
        block_bytes=demand.block_bytes,
        explanation=_explanation(demand),
        warning="" if demand.holds_a_sequence else _warning(demand, narrower),
    )


def _refusal(demand: KVDemand, narrower: tuple[NarrowerWeights, ...]) -> str:
    fewest = demand.fewest_blocks
    found = remedies(demand, narrower, lambda other: other.is_met, needed_blocks=fewest)
    remedy = said(found, demand, needed_blocks=fewest)
    if demand.budget_bytes > demand.free_bytes:
        wish, free = human_size(demand.budget_bytes), human_size(demand.free_bytes)
        return f"the KV pool was set to {wish} and {free} are free; {remedy}"
    return (
        f"the KV pool needs at least {human_size(fewest * demand.block_bytes)} and {_source(demand)} leave "
        f"{human_size(demand.budget_bytes)}; {remedy}"
    )


def _warning(demand: KVDemand, narrower: tuple[NarrowerWeights, ...]) -> str:
    needed = demand.sequence_blocks
    found = remedies(demand, narrower, lambda other: other.holds_a_sequence, needed_blocks=needed)
    return (
        f"the KV pool holds {demand.num_tokens} tokens, and one sequence may have {demand.context_length}: "
        f"longer ones are refused; {said(found, demand, needed_blocks=needed)}"
    )


def _source(demand: KVDemand) -> str:
    if demand.is_wish:
        return f"{human_size(demand.budget_bytes)} asked for"
    return f"{human_size(demand.free_bytes)} free - {human_size(demand.left_bytes)} reserve"


def _explanation(demand: KVDemand) -> str:
    token_bytes = demand.layout.token_bytes * demand.num_layers
    return (
        f"KV pool: {_source(demand)} = {human_size(demand.budget_bytes)}; {demand.max_sequences} sequences x "
        f"{demand.context_length} tokens use at most {demand.useful_blocks} blocks, "
        f"{demand.num_full_sequences} of them fit at once; {demand.num_blocks} blocks x "
        f"{demand.layout.block_size} tokens x {human_size(token_bytes)} = "
        f"{human_size(demand.num_blocks * demand.block_bytes)}"
    )
