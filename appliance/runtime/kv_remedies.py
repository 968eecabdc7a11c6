"""What would fit where a KV pool does not, each tried by the pool's own arithmetic. Sets nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from appliance.runtime.human_size import enough_size, held_size, human_size
from appliance.runtime.kv_demand import KVDemand
from kernels.kv_layout import KVType

# The least that --context takes; and what is worth advising.
_SHORTEST_CONTEXT = 16
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
        missing = enough_size(missing_bytes).replace("MiB", " MiB")
        more = f"close programs that hold {missing} or more"
        size = enough_size(needed_blocks * demand.block_bytes)
        words.append(f"{more} and set --kv-memory to {size}" if demand.is_wish else more)
    if not found:
        words.append("choose a smaller model")
    return ", or ".join(words)


def _pool_sizes(demand: KVDemand, needed_blocks: int) -> Iterator[Remedy]:
    if not demand.is_wish:
        return
    if demand.budget_bytes > demand.free_bytes:
        size, verb, num_bytes = held_size(demand.free_bytes), "lower", demand.free_bytes
    else:
        size, verb = enough_size(needed_blocks * demand.block_bytes), "raise"
        num_bytes = int(size.removesuffix("MiB")) * 2**20
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
