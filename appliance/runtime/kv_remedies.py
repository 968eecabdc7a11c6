"""What would fit where a KV pool does not, each tried by the pool's own arithmetic. Sets nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from appliance.runtime.human_size import MIB, human_size, rounded_down, rounded_up, setting_of
from appliance.runtime.kv_demand import KVDemand
from kernels.kv_layout import KVType

# The least that --context takes; and what is worth advising.
_SHORTEST_CONTEXT = 16
_SAFE_SHARE = 0.9
IsEnough = Callable[[KVDemand], bool]


@dataclass(frozen=True, slots=True)
class NarrowerWeights:
    """A precision narrower than the one chosen, and the bytes that it would leave free besides."""

    precision: str
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """Words for an operator, and the demand as it is then."""

    words: str
    demand: KVDemand


def remedies(
    demand: KVDemand, narrower: tuple[NarrowerWeights, ...], is_enough: IsEnough, *, needed_blocks: int
) -> list[Remedy]:
    """Return what makes the demand one that is enough, the cheapest for its user first.

    `narrower` goes from the widest down; the first that helps is named. `needed_blocks` are enough.
    """
    candidates = [
        *_pool_sizes(demand, needed_blocks),
        *_int8(demand),
        *_context(demand),
        *_precisions(demand, narrower, is_enough),
    ]
    return [candidate for candidate in candidates if is_enough(candidate.demand)]


def said(found: list[Remedy], demand: KVDemand, *, needed_blocks: int) -> str:
    """Return all remedies in a row, and how much memory is missing where more of it helps."""
    words = [remedy.words for remedy in found]
    missing_bytes = demand.free_bytes_for(needed_blocks) - demand.free_bytes
    if missing_bytes > 0:
        missing = f"{rounded_up(missing_bytes) // MIB} MiB"
        more = f"close programs that hold {missing} or more"
        size = setting_of(rounded_up(needed_blocks * demand.block_bytes))
        words.append(f"{more} and set --kv-memory to {size}" if demand.is_wish else more)
    if not found:
        words.append("choose a smaller model")
    return ", or ".join(words)


def _pool_sizes(demand: KVDemand, needed_blocks: int) -> Iterator[Remedy]:
    if not demand.is_wish:
        return
    verb, num_bytes = "raise", rounded_up(needed_blocks * demand.block_bytes)
    if demand.budget_bytes > demand.free_bytes:
        # What is free changes while this is read.
        most = max(int(demand.free_bytes * _SAFE_SHARE), min(num_bytes, demand.free_bytes))
        verb, num_bytes = "lower", rounded_down(most)
    size = setting_of(num_bytes)
    yield Remedy(f"{verb} --kv-memory to {size}", replace(demand, wanted_bytes=num_bytes, wanted_share=None))


def _int8(demand: KVDemand) -> Iterator[Remedy]:
    if not demand.layout.is_int8:
        small = replace(demand, layout=replace(demand.layout, dtype=KVType.INT8))
        yield Remedy(f"--kv-dtype int8 holds {small.num_tokens} tokens", small)


def _context(demand: KVDemand) -> Iterator[Remedy]:
    """The longest for one sequence."""
    longest = demand.budget_bytes // demand.block_bytes * demand.layout.block_size
    if _SHORTEST_CONTEXT <= longest < demand.context_length:
        yield Remedy(f"--context {longest} fits one sequence", replace(demand, context_length=longest))


def _precisions(
    demand: KVDemand, narrower: tuple[NarrowerWeights, ...], is_enough: IsEnough
) -> Iterator[Remedy]:
    for weights in narrower:
        wider = replace(demand, free_bytes=demand.free_bytes + weights.freed_bytes)
        if is_enough(wider):
            yield Remedy(
                f"--precision {weights.precision} frees {human_size(weights.freed_bytes)} and leaves a pool "
                f"of {wider.num_tokens} tokens",
                wider,
            )
            return
