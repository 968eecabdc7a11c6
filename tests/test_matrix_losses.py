from pathlib import Path

import pytest

from appliance.matrix_losses import LayerLoss, MatrixLoss, by_layer, losses_file, read_losses, save_losses

LOSSES = (
    MatrixLoss(name="10.qkv", error=0.25, effect=0.5, is_kept=False),
    MatrixLoss(name="2.qkv", error=0.125, effect=0.25, is_kept=True),
    MatrixLoss(name="2.down", error=0.5, effect=1.0, is_kept=False),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    return file


def test_losses_are_kept_for_one_file_alone(model: Path) -> None:
    assert read_losses(model) == ()
    save_losses(model, LOSSES)
    assert read_losses(model) == LOSSES
    model.write_bytes(b"other weights")
    assert read_losses(model) == ()


def test_a_spoilt_file_counts_as_none(model: Path) -> None:
    save_losses(model, LOSSES)
    losses_file(model).write_text('[{"name": 3}]')
    assert read_losses(model) == ()


def test_a_layer_has_the_worst_error_and_all_effects_of_its_matrices() -> None:
    assert by_layer(LOSSES) == (
        LayerLoss(layer=2, error=0.5, effect=1.25, num_kept=1),
        LayerLoss(layer=10, error=0.25, effect=0.5, num_kept=0),
    )
