"""Where the scales of a precision map go: onto a matrix's columns, and off what feeds it.

Norms feed `qkv` and `gate_up`, values feed `output` through attention, up rows feed `down` through the gate:
each is linear in its rows, so that the network's products stay what they were.
"""

from collections.abc import Mapping

import numpy as np

from appliance.errors import BadSetting
from appliance.model.config import ModelConfig, NormPlacement
from appliance.model.tensor_names import Slot
from appliance.precision_map import Scales

_PLACES = {
    Slot.QUERY: "qkv", Slot.KEY: "qkv", Slot.VALUE: "qkv", Slot.OUTPUT: "output",
    Slot.GATE: "gate_up", Slot.UP: "gate_up", Slot.DOWN: "down",
}  # fmt: skip
_FED_BY_NORM = {Slot.ATTENTION_PRE_NORM: "qkv", Slot.FEED_FORWARD_PRE_NORM: "gate_up"}
_FED_BY_ROWS = {Slot.VALUE: "output", Slot.UP: "down"}


def scalable_places(config: ModelConfig) -> tuple[str, ...]:
    """Return the places whose inputs can be scaled: what no norm precedes cannot, nor can experts."""
    norms = () if config.norm_placement is NormPlacement.POST else ("qkv", "gate_up")
    places = (*norms, "output", "down")
    return places if config.experts is None else tuple(p for p in places if p in ("qkv", "output"))


class ChannelScales:
    """The scales of one network, by name as in a map. Raises BadSetting where they do not fit it."""

    def __init__(self, scales: Mapping[str, Scales], config: ModelConfig) -> None:
        self._scales = scales
        self._config = config
        sizes = {"qkv": config.hidden_size, "gate_up": config.hidden_size, "down": config.intermediate_size}
        sizes["output"] = config.num_heads * config.head_size
        places = scalable_places(config)
        for name, values in scales.items():
            place = name.partition(".")[2]
            if place not in places or values.shape != (sizes[place],):
                raise BadSetting(
                    f"the channel scales of '{name}' do not fit this model: {values.size} values; "
                    "calibrate it again"
                )

    def of_norm(self, slot: Slot, layer: int) -> Scales | None:
        """What a norm's weight is divided by."""
        return self._scales.get(f"{layer}.{_FED_BY_NORM[slot]}") if slot in _FED_BY_NORM else None

    def of_columns(self, slot: Slot, layer: int) -> Scales | None:
        """What a matrix's columns are multiplied by."""
        return self._scales.get(f"{layer}.{_PLACES[slot]}") if slot in _PLACES else None

    def of_rows(self, slot: Slot, layer: int) -> Scales | None:
        """What a matrix's rows, and its bias, are divided by."""
        scales = self._scales.get(f"{layer}.{_FED_BY_ROWS[slot]}") if slot in _FED_BY_ROWS else None
        if scales is None or slot is Slot.UP:
            return scales
        # The query heads of a group read the same values, and have the same scales.
        heads = scales.reshape(self._config.num_kv_heads, -1, self._config.head_size)
        return np.ascontiguousarray(heads[:, 0]).reshape(-1)
