"""What each matrix of a model loses in INT8, as `appliance calibrate` found, kept beside other state.

Knows no model and measures nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from appliance import paths
from appliance.quality import file_key


class MatrixLoss(msgspec.Struct, frozen=True, kw_only=True):
    """One name of a precision map. `effect` is in nats per token, `error` relative to the outputs."""

    name: str
    error: float
    effect: float
    is_kept: bool  # in 16 bits


class LayerLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's matrices together: the worst error, the sum of effects."""

    layer: int
    error: float
    effect: float
    num_kept: int


def by_layer(losses: Sequence[MatrixLoss]) -> tuple[LayerLoss, ...]:
    """Return one for each layer, in their order."""
    layers: dict[int, list[MatrixLoss]] = {}
    for loss in losses:
        layers.setdefault(int(loss.name.split(".", 1)[0]), []).append(loss)
    return tuple(
        LayerLoss(
            layer=layer,
            error=max(loss.error for loss in of_layer),
            effect=sum(loss.effect for loss in of_layer),
            num_kept=sum(loss.is_kept for loss in of_layer),
        )
        for layer, of_layer in sorted(layers.items())
    )


def losses_file(model: Path) -> Path:
    """Where that file's losses are, or will be. Raises OSError."""
    return paths.state_dir() / "quality" / f"{file_key(model)}.matrices.json"


def read_losses(model: Path) -> tuple[MatrixLoss, ...]:
    """Return what was kept of that file; nothing where there is nothing that can be read."""
    try:
        return msgspec.json.decode(losses_file(model).read_bytes(), type=tuple[MatrixLoss, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def save_losses(model: Path, losses: Sequence[MatrixLoss]) -> Path:
    """Keep them, in place of earlier ones. Raises StorageNotWritable."""
    file = losses_file(model)
    paths.ensure_writable(file.parent)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(losses)))
    part.replace(file)
    return file
