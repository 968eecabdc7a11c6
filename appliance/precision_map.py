"""What `int8-mixed` does to each matrix of a model, and the files beside the model that say it.

A name is a layer's number and a matrix's place, as `3.down`; matrices that are computed as one share a name.
Knows no weights.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadSetting

PLACES = ("qkv", "output", "gate_up", "down")
_KEY = "keep-16-bit"
_INPUTS_KEY = "input-scales"
Scales = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMap:
    """The matrices kept in 16 bits, and scales (I) of others' input channels.

    A scaled matrix's columns are multiplied by its scales, and what feeds it is divided by them: products
    stay what they were, while INT8 spends its steps where inputs are large. `input_scales` are what a step of
    INT8 inputs is worth, for matrices that lose no more by one for all tokens than by one per token.
    """

    kept: frozenset[str] = frozenset()
    scales: Mapping[str, Scales] = field(default_factory=dict)
    input_scales: Mapping[str, float] = field(default_factory=dict)


EMPTY_MAP = PrecisionMap()


def map_file(model: Path) -> Path:
    """Where a model's precision map is, or will be: beside it, under its whole name."""
    return model.with_name(f"{model.name}.precision.toml")


def scales_file(model: Path) -> Path:
    """Where the scales of a model's input channels are, if it has any."""
    return model.with_name(f"{model.name}.scales.npz")


def read_map(model: Path) -> PrecisionMap | None:
    """The map beside a model, None without one. Raises BadSetting."""
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
    return PrecisionMap(
        kept=frozenset(names),
        scales=_read_scales(scales_file(model)),
        input_scales=_input_scales(table.get(_INPUTS_KEY, {}), file),
    )


def _input_scales(found: object, file: Path) -> dict[str, float]:
    if not isinstance(found, dict) or not all(
        type(value) in (int, float) and 0 < value < math.inf for value in found.values()
    ):
        raise BadSetting(
            f"the precision map {file} needs [{_INPUTS_KEY}] with numbers above 0, such as '3.down' = 0.02"
        )
    return {name: float(value) for name, value in found.items()}


def _read_scales(file: Path) -> dict[str, Scales]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name].astype(np.float32) for name in arrays.files}
    except FileNotFoundError:
        return {}
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise BadSetting(
            f"the channel scales {file} cannot be read: {error}; delete them, or calibrate again"
        ) from error
    if bad := [name for name, values in found.items() if not (np.isfinite(values) & (values > 0)).all()]:
        raise BadSetting(
            f"the channel scales {file} hold values of '{bad[0]}' that are not above 0; calibrate again"
        )
    return found


def write_map(model: Path, wanted: PrecisionMap) -> Path:
    """Write the map beside a model, in place of an earlier one. Raises OSError."""
    names = sorted(wanted.kept, key=_order)
    lines = ["# Kept in 16 bits under int8-mixed.", f"{_KEY} = [", *(f'  "{name}",' for name in names), "]"]
    if wanted.input_scales:
        lines += [
            "",
            "# What a step is worth where inputs of all tokens share one scale.",
            f"[{_INPUTS_KEY}]",
        ]
        lines += [
            f'"{name}" = {wanted.input_scales[name]!r}' for name in sorted(wanted.input_scales, key=_order)
        ]
    file, scales = map_file(model), scales_file(model)
    part, scales_part = file.with_suffix(".part"), scales.with_suffix(".part")
    part.write_text("\n".join([*lines, ""]))
    if wanted.scales:
        with scales_part.open("wb") as whole:
            np.savez(whole, **wanted.scales)  # type: ignore[arg-type]  # its stub takes any name for its own flag
        scales_part.replace(scales)
    else:
        scales.unlink(missing_ok=True)
    part.replace(file)
    return file


def check_names(wanted: PrecisionMap, num_layers: int) -> None:
    """Raise BadSetting for a name that no matrix of such a model has."""
    known = {f"{layer}.{place}" for layer in range(num_layers) for place in PLACES}
    _check(wanted.kept, known, num_layers, "keeps")
    _check(wanted.scales, known, num_layers, "scales")
    _check(wanted.input_scales, known, num_layers, "gives an input scale to")
    if both := sorted(wanted.kept & wanted.input_scales.keys()):
        raise BadSetting(
            f"the precision map keeps '{both[0]}' in 16 bits and gives it an input scale, which is for INT8; "
            "delete one of the two, or calibrate again"
        )


def _check(names: Collection[str], known: Collection[str], num_layers: int, verb: str) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise BadSetting(
            f"the precision map {verb} '{unknown[0]}', which this model of {num_layers} layers has not; "
            f"names are a layer from 0 to {num_layers - 1} and one of {', '.join(PLACES)}, as '0.down'"
        )


def _order(name: str) -> tuple[int, int]:
    layer, place = name.split(".")
    return int(layer), PLACES.index(place)
