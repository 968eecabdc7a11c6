"""What a model is for, read from files of both kinds."""

import json
from pathlib import Path

import pytest

from appliance.formats.gguf import read_gguf
from appliance.formats.hf_folder import HFFolder
from appliance.text.purpose import Pooling, Purpose, Use, read_purpose
from formats.gguf_builder import tiny_vocabulary, write_gguf


@pytest.mark.parametrize(
    ("metadata", "model_id", "expected"),
    [
        ({}, "tiny", Purpose(use=Use.WRITING)),
        ({"qwen3.pooling_type": 0}, "tiny", Purpose(use=Use.WRITING)),
        ({"qwen3.pooling_type": 1}, "tiny", Purpose(use=Use.EMBEDDING, pooling=Pooling.MEAN)),
        ({"qwen3.pooling_type": 3}, "tiny", Purpose(use=Use.EMBEDDING)),
        ({"qwen3.pooling_type": 4}, "tiny", Purpose(use=Use.RANKING)),
        ({"general.name": "Qwen3 Reranker 0.6B"}, "tiny", Purpose(use=Use.RANKING)),
        ({}, "qwen3-embedding-0.6b", Purpose(use=Use.EMBEDDING)),
    ],
)
def test_a_gguf_says_it_by_pooling_or_by_name(
    tmp_path: Path, metadata: dict[str, int | str], model_id: str, expected: Purpose
) -> None:
    values = tiny_vocabulary() | {"general.architecture": "qwen3"} | metadata
    with read_gguf(write_gguf(tmp_path / "model.gguf", values, {})) as file:
        assert read_purpose(file, model_id) == expected


def test_a_folder_says_it_in_its_pooling_file(tmp_path: Path) -> None:
    folder = HFFolder(tmp_path, {}, {}, {})
    assert read_purpose(folder, "m") == Purpose(use=Use.WRITING)
    (tmp_path / "1_Pooling").mkdir()
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert read_purpose(folder, "m") == Purpose(use=Use.EMBEDDING)
