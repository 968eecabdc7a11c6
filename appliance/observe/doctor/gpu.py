"""Whether the GPUs can serve the model, one clear sentence each. Judges facts; reads none."""

from collections.abc import Callable

from appliance.observe.doctor.finding import Finding, failed, passed, size, warned
from appliance.observe.doctor.gpu_facts import Card, GpuFacts

# The kernels are written for Ampere and newer.
MIN_CAPABILITY = (8, 0)
# What a model on a GPU needs beside its weights: the driver's context and a KV pool worth having.
_BESIDE_WEIGHTS_BYTES = 2**30
Bad = Callable[[str, str, str], Finding]


def check_gpu(facts: GpuFacts, model_bytes: int, *, asked_by: str = "") -> list[Finding]:
    """One line for the driver, then one for each card. They fail only where a GPU was asked for.

    `asked_by` is the setting that does, such as `--device cuda:1`.
    """
    bad = failed if asked_by else warned
    driver = _check_driver(facts, bad)
    if driver is not None:
        return [driver]
    if not facts.cards:
        return [_without_gpu(facts, asked_by)]
    number = _number_of_card(asked_by)
    if number >= len(facts.cards):
        last = len(facts.cards) - 1
        return [failed("gpu", f"{asked_by} is not there; the last card is cuda:{last}", _remedy(asked_by))]
    return [
        _check_card(f"gpu {index}", card, facts, model_bytes, bad) for index, card in enumerate(facts.cards)
    ]


def _without_gpu(facts: GpuFacts, asked_by: str) -> Finding:
    if asked_by:
        return failed("gpu", f"{asked_by} cannot be used: no NVIDIA GPU is found", _remedy(asked_by))
    if facts.has_module and facts.driver_problem is None:
        return passed("gpu", "the driver is there and shows no card; the CPU serves")
    return passed("gpu", "no NVIDIA GPU; the CPU serves")


def _number_of_card(asked_by: str) -> int:
    _, _, number = asked_by.partition("cuda:")
    return int(number) if number.isdecimal() else 0


def _remedy(asked_by: str) -> str:
    """The same option without a GPU by name."""
    return f"without a GPU: {asked_by.split()[0]} auto"


def _check_driver(facts: GpuFacts, bad: Bad) -> Finding | None:
    """The first thing that keeps every card away; None where nothing does."""
    if facts.has_module and facts.driver_problem is None:
        return _check_versions(facts, bad) if facts.cards else None
    if not facts.num_on_bus:
        return None
    count = f"{facts.num_on_bus} NVIDIA card{'s are' if facts.num_on_bus > 1 else ' is'} in this machine"
    if not facts.has_module:
        return bad(
            "gpu", f"{count}, but nothing here can talk to them", "pip install inference-appliance[cuda]"
        )
    assert facts.driver_problem is not None
    if "lost" in facts.driver_problem.lower():
        return bad(
            "gpu",
            f"{count}, and the driver has lost one: {facts.driver_problem}",
            "restart the machine; if it happens again, the driver's log says more",
        )
    return bad(
        "gpu",
        f"{count} without a working driver: {facts.driver_problem}",
        "install NVIDIA's driver and restart; in a container pass the cards in (--gpus all)",
    )


def _check_versions(facts: GpuFacts, bad: Bad) -> Finding | None:
    if facts.torch_cuda is None:
        return bad(
            "gpu",
            "there is a GPU, but this PyTorch is built without CUDA",
            "install PyTorch's CUDA build instead (pytorch.org names its index)",
        )
    # Within one major version of CUDA older drivers serve newer builds.
    if facts.driver_cuda is not None and facts.driver_cuda[0] < facts.torch_cuda[0]:
        return bad(
            "gpu",
            f"driver {facts.driver_version} is too old: it serves CUDA {_dotted(facts.driver_cuda)} and this "
            f"PyTorch needs {_dotted(facts.torch_cuda)}",
            "update NVIDIA's driver, or install a PyTorch built for an older CUDA",
        )
    return None


def _check_card(name: str, card: Card, facts: GpuFacts, model_bytes: int, bad: Bad) -> Finding:
    needed = model_bytes + _BESIDE_WEIGHTS_BYTES
    if card.capability < MIN_CAPABILITY:
        return bad(
            name,
            f"{card.name} is too old: compute capability {_dotted(card.capability)}, the kernels need "
            f"{_dotted(MIN_CAPABILITY)}; plain PyTorch serves there",
            "use a card of the Ampere generation or newer, or --device cpu",
        )
    if card.total_bytes < needed:
        return bad(
            name,
            f"{card.name} is too small: {size(card.total_bytes)}, and the model with its KV pool needs about "
            f"{size(needed)}",
            "choose a smaller model or a lower --precision, or --device cpu",
        )
    if card.free_bytes < needed:
        return bad(
            name,
            f"{card.name} has {size(card.free_bytes)} of {size(card.total_bytes)} free and about "
            f"{size(needed)} are needed; held by {_holders(card)}",
            "end those programs, or choose another card with --device cuda:N",
        )
    return passed(
        name,
        f"{card.name}, compute capability {_dotted(card.capability)}, {size(card.free_bytes)} of "
        f"{size(card.total_bytes)} free, driver {facts.driver_version}",
    )


def _holders(card: Card) -> str:
    if not card.holders:
        return "programs that the driver does not name"
    return ", ".join(f"{name}: {size(num_bytes)}" for name, num_bytes in card.holders[:3])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
