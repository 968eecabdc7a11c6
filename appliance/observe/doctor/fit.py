"""Whether the model and its KV pool fit, in the words of a start. Plans nothing: how is passed in."""

from collections.abc import Callable
from typing import Protocol

from appliance.catalog import ModelEntry, ModelFile
from appliance.errors import ApplianceError, NoUsableGpu
from appliance.observe.doctor.finding import Finding, failed, passed, warned
from appliance.observe.doctor.weights import Found


class Foreseen(Protocol):
    """What a start would do with memory."""

    @property
    def summary(self) -> str: ...
    @property
    def warning(self) -> str: ...


Foresee = Callable[[ModelFile], Foreseen | None]


def check_fit(name: str, find: Callable[[str], Found], foresee: Foresee) -> list[Finding]:
    """Say what a start would say of memory; nothing of a model that is absent, or where the GPU is."""
    try:
        found = find(name)
        foreseen = None if isinstance(found, ModelEntry) else foresee(found)
    except NoUsableGpu:
        return []  # the GPU's own line says it
    except (ApplianceError, OSError) as error:
        wrong, _, remedy = str(error).partition("; ")
        return [failed("fit", wrong, remedy or "choose another model or setting")]
    if foreseen is None:
        return []
    if foreseen.warning:
        wrong, _, remedy = foreseen.warning.partition("; ")
        return [warned("fit", wrong, remedy)]
    return [passed("fit", foreseen.summary)]
