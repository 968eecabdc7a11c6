"""Which matrices of a model stay in 16 bits under `int8-mixed`: names, and the file beside the model.

A name is a layer's number and a matrix's place, as `3.down`; matrices that are computed as one share a name.
Knows no weights.
"""

import tomllib
from collections.abc import Collection
from pathlib import Path

from appliance.errors import BadSetting

PLACES = ("qkv", "output", "gate_up", "down")
_KEY = "keep-16-bit"


def map_file(model: Path) -> Path:
    """Where a model's precision map is, or will be: beside it, under its whole name."""
    return model.with_name(f"{model.name}.precision.toml")


def read_map(model: Path) -> frozenset[str] | None:
    """The names that the map beside a model keeps in 16 bits, None without one. Raises BadSetting."""
    file = map_file(model)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"the precision map {file} cannot be read: {error}") from error
    names = table.get(_KEY)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadSetting(f"the precision map {file} needs {_KEY} = [...], a list of names such as '3.down'")
    return frozenset(names)


def write_map(model: Path, kept: Collection[str]) -> Path:
    """Write the map beside a model, in place of an earlier one. Raises OSError."""
    names = sorted(kept, key=_order)
    lines = [f'  "{name}",' for name in names]
    file = map_file(model)
    part = file.with_suffix(".part")
    part.write_text("\n".join(["# Kept in 16 bits under int8-mixed.", f"{_KEY} = [", *lines, "]", ""]))
    part.replace(file)
    return file


def check_names(kept: Collection[str], num_layers: int) -> None:
    """Raise BadSetting for a name that no matrix of such a model has."""
    known = {f"{layer}.{place}" for layer in range(num_layers) for place in PLACES}
    if unknown := sorted(set(kept) - known):
        raise BadSetting(
            f"the precision map keeps '{unknown[0]}', which this model of {num_layers} layers has not; names "
            f"are a layer from 0 to {num_layers - 1} and one of {', '.join(PLACES)}, as '0.down'"
        )


def _order(name: str) -> tuple[int, int]:
    layer, place = name.split(".")
    return int(layer), PLACES.index(place)
