"""Settings of single models: what is read, what is refused, what reaches the model."""

from pathlib import Path

import pytest

from appliance.catalog import ModelFile
from appliance.config import Settings, resolve
from appliance.errors import BadSetting
from appliance.model.config import RopeScaling
from appliance.model.rope_override import RopeOverride
from appliance.model_overrides import ModelOverrides
from appliance.model_pool import ALL_ROOM, ResidentModel, Room
from appliance.serve import load_file, open_appliance
from server.rig import chat, completion, make_rig

TEXT = """
context = 64
[models."tiny"]
alias = ["gpt-4", "Small"]
context = 32
system = "be brief"
chat_template = "{{ messages[0].content }}"
sampling = { temperature = 0.1, top_k = 3 }
[models."other"]
alias = "big"
"""


def read(folder: Path, text: str) -> ModelOverrides:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return ModelOverrides.read(file)


def test_a_table_of_a_model_reaches_it(tmp_path: Path) -> None:
    overrides = read(tmp_path, TEXT)
    assert overrides.aliases() == {"gpt-4": "tiny", "small": "tiny", "big": "other"}
    assert overrides.of("tiny").context == 32
    with make_rig() as rig:
        model = overrides.of("tiny").apply(rig.model)
        assert model.defaults.system == "be brief"
        assert model.defaults.options == {"temperature": 0.1, "top_k": 3}
        assert model.chat_template is not None
        assert model.chat_template.source == "{{ messages[0].content }}"
        assert model.engine is rig.engine
        assert overrides.of("none").apply(rig.model) == rig.model


def test_the_other_settings_of_the_file_still_count(tmp_path: Path) -> None:
    read(tmp_path, TEXT)
    assert resolve({}, environment={}, settings_file=tmp_path / "settings.toml").context == 64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.a]\nspeed = 1", "speed"),
        ("[models.a]\ncontext = 3", "context"),
        ("[models.a]\nsystem = 3", "system"),
        ('[models.a]\nchat_template = "{% if %}"', '"a".* chat_template'),
        ('[models.a]\nrope_scaling = { type = "su", factor = 2 }', "rope_scaling"),
        ('[models.a]\nrope_scaling = { type = "yarn", factor = 0.5 }', "factor"),
        ('[models.a]\nrope_scaling = { type = "yarn", fact = 2 }', "fact"),
        ("models = 3", r"\[models\]"),
        ('[models.a]\nalias = "x"\n[models.b]\nalias = "X"', "'x'"),
        ("[models.a", "cannot be read"),
    ],
)
def test_what_is_no_table_of_a_model_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        read(tmp_path, text)


def test_no_file_means_no_overrides(tmp_path: Path) -> None:
    assert ModelOverrides.read(tmp_path / "none.toml").aliases() == {}
    assert ModelOverrides.read(None).aliases() == {}


def test_settled_sampling_holds_for_openai_clients_that_leave_it_open(tmp_path: Path) -> None:
    text = (
        '[models."tiny"]\nsampling = { temperature = 0.0, top_k = 3, repeat_penalty = 1.5, stop = ["wor"] }'
    )
    with make_rig() as rig:
        model = read(tmp_path, text).of("tiny").apply(rig.model)
        rig.state.pool.remove(model.model_id)
        rig.state.pool.add(model)
        with rig.client() as client:
            for path, fields in (("/v1/chat/completions", chat()), ("/v1/completions", completion())):
                answer = client.post(path, json={**fields, "top_k": 5}).json()["choices"][0]
                assert (answer.get("text") or answer["message"]["content"]) == "hello "
                sampling = rig.runner.batches[-1].sequences[0].sampling
                assert sampling is not None
                found = (sampling.temperature, sampling.top_k, sampling.repetition_penalty)
                assert found == (0.0, 5, 1.5)
            client.post("/v1/responses", json={"model": model.model_id, "input": "hi", "temperature": 1})
        sampling = rig.runner.batches[-1].sequences[0].sampling
        assert sampling is not None
        assert (sampling.temperature, sampling.top_k) == (1.0, 3)


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ("{ temperature = -1.0 }", r"'sampling.temperature' is -1.0"),
        ('{ top_k = "many" }', "sampling.top_k"),
        ("{ temprature = 1.0 }", "'temprature'; the options are .*temperature"),
    ],
)
def test_sampling_that_no_request_could_use_ends_the_start(tmp_path: Path, sampling: str, told: str) -> None:
    overrides = read(tmp_path, f"[models.a]\nsampling = {sampling}")
    with pytest.raises(BadSetting, match=told):
        open_appliance(resolve({"port": "0"}, environment={}), overrides)


def test_scaling_and_context_reach_the_load(tmp_path: Path) -> None:
    overrides = read(
        tmp_path,
        '[models.tiny]\ncontext = 128\nrope_scaling = { type = "yarn", factor = 4, original_context = 32 }',
    )
    seen: list[tuple[int | None, RopeOverride | None]] = []
    with make_rig() as rig:

        def load(
            settings: Settings, _f: ModelFile, _r: object, _room: Room, rope: RopeOverride | None
        ) -> ResidentModel:
            seen.append((settings.context, rope))
            return rig.model

        file = ModelFile(model_id="tiny", path=tmp_path / "tiny.gguf")
        load_file(load, resolve({}, environment={}), overrides, file, ALL_ROOM, lambda *_: None)
    assert seen == [(128, RopeOverride(scaling=RopeScaling.YARN, factor=4.0, original_context=32))]


def test_an_alias_names_its_model_and_other_names_stay(tmp_path: Path) -> None:
    overrides = read(tmp_path, TEXT)
    assert [overrides.unaliased(name) for name in ("GPT-4", "tiny", "/a/B.gguf")] == [
        "tiny",
        "tiny",
        "/a/B.gguf",
    ]
