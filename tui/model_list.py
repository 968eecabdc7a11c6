"""The models of an appliance as one list, whichever of its lists it has. Knows no HTTP and no widgets."""

from dataclasses import dataclass

from tui.wire import ListedModel, LoadedModel, StoredModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """`state` is loaded, loading, draining, installed or available; `memory_bytes` of a loaded one."""

    name: str
    state: str
    precision: str = ""
    parameters: str = ""
    size_bytes: int = 0
    memory_bytes: int | None = None
    detail: str = ""
    requests: int = 0

    @property
    def is_in_memory(self) -> bool:
        """Loaded, or on its way in or out."""
        return self.state in ("loaded", "loading", "draining")


_ORDER = ("loaded", "loading", "draining", "installed", "available")


def model_rows(
    stored: list[StoredModel], loaded: list[LoadedModel], listed: list[ListedModel]
) -> list[ModelRow]:
    """What is loaded first, then what is on the disk, then what the catalogue has besides."""
    memory = {one.name: one.size for one in loaded}
    rows = {
        one.name: ModelRow(
            name=one.name,
            state="loaded" if one.name in memory else "installed",
            precision=one.details.quantization_level,
            parameters=one.details.parameter_size,
            size_bytes=one.size,
            memory_bytes=memory.get(one.name),
        )
        for one in stored
    }
    for model in listed:
        rows[model.id] = _row(model, rows.get(model.id))
    return sorted(
        rows.values(), key=lambda row: _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER)
    )


def _row(model: ListedModel, stored: ModelRow | None) -> ModelRow:
    share = "" if model.progress is None else f" {model.progress:.0%}"
    return ModelRow(
        name=model.id,
        state=model.state,
        precision=stored.precision if stored else "",
        parameters=stored.parameters if stored else "",
        size_bytes=model.size_bytes,
        memory_bytes=model.weights_bytes + model.kv_pool_bytes or None,
        detail=f"{model.detail or model.state}{share}" if model.state == "loading" else "",
        requests=model.requests,
    )
