"""Ollama's routes about models: what is listed, shown, pulled, copied, made and deleted, and what is not."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.catalog import Catalog, FileSource, ModelEntry
from formats.gguf_builder import tiny_vocabulary, write_gguf
from server.rig import (
    MODEL_ID,
    TOKENIZER,
    Rig,
    make_rig,
    ndjson,
    open_socket,
    read_until,
    request_bytes,
    serve,
    wait_for,
)

Client = TestClient[ASGIApp]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """One model that can be pulled from a file, and one whose file is missing."""
    path = write_gguf(tmp_path / "source.gguf", tiny_vocabulary(), {})
    data = path.read_bytes()
    fields: dict[str, Any] = {
        "description": "",
        "architecture": "llama",
        "num_parameters": 1_500_000,
        "context_length": 64,
        "licence": "MIT",
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    here = ModelEntry(
        model_id="small-1b",
        name="Small",
        file="small-Q4_1.gguf",
        aliases=("small:1b",),
        sources=(FileSource(path=str(path)),),
        **fields,
    )
    gone = ModelEntry(
        model_id="gone-1b", name="Gone", file="gone.gguf", sources=(FileSource(path="/nowhere"),), **fields
    )
    return Catalog((here, gone), folder=tmp_path)


@pytest.fixture
def stocked(catalog: Catalog) -> Any:
    with make_rig(catalog=catalog) as rig, rig.client() as client:
        yield rig, client


def names(client: Client) -> list[str]:
    return [model["name"] for model in client.get("/api/tags").json()["models"]]


def test_version_and_heads(client: Client) -> None:
    assert set(client.get("/api/version").json()) == {"version"}
    for path in ("/api/version", "/api/tags", "/api/ps"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")


def test_the_root_is_the_line_that_clients_look_for(client: Client) -> None:
    assert client.get("/").text == "Ollama is running"
    head = client.head("/")
    assert (head.status_code, head.content) == (200, b"")


def test_tags_list_what_can_be_asked(client: Client) -> None:
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == MODEL_ID
    assert datetime.fromisoformat(model["modified_at"]).tzinfo is not None
    assert model["size"] > 0
    assert len(model["digest"]) == 64
    assert model["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "0M",
        "quantization_level": "Q8_0",
    }


def test_ps_tells_of_the_loaded_model(client: Client) -> None:
    (model,) = client.get("/api/ps").json()["models"]
    assert model["name"] == MODEL_ID
    assert model["size"] > 0
    assert model["size_vram"] == 0
    assert model["context_length"] == 256
    assert datetime.fromisoformat(model["expires_at"]) > datetime.now().astimezone()


@pytest.mark.parametrize("body", [{"model": MODEL_ID}, {"name": MODEL_ID}, {"model": f"{MODEL_ID}:latest"}])
def test_show_tells_everything(client: Client, body: Any) -> None:
    shown = client.post("/api/show", json=body).json()
    assert "im_start" in shown["template"]
    assert shown["capabilities"] == ["completion"]
    assert shown["details"]["format"] == "gguf"
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "tokenizer.ggml.tokens" not in shown["model_info"]
    assert shown["modelfile"].startswith(f"FROM {MODEL_ID}")


def test_show_of_an_unknown_model(client: Client) -> None:
    answer = client.post("/api/show", json={"model": "nope"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "model 'nope' not found"}
    assert client.post("/api/show", json={}).status_code == 400


def test_pull_tells_of_its_progress_and_ends_in_success(stocked: tuple[Rig, Client]) -> None:
    _, client = stocked
    assert names(client) == [MODEL_ID]
    answer = client.post("/api/pull", json={"model": "small:1b"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = ndjson(answer.content)
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[-1] == {"status": "success"}
    assert names(client) == [MODEL_ID, "small-1b"]
    whole = client.post("/api/pull", json={"name": "small-1b", "stream": False})
    assert whole.json() == {"status": "success"}


def test_a_pull_goes_on_to_its_end_when_the_client_leaves(catalog: Catalog) -> None:
    with make_rig(catalog=catalog) as rig, serve(rig) as server:
        library = rig.state.library
        assert library is not None
        request = request_bytes("/api/pull", {"model": "small-1b"})
        # Another pull, as it were: this one waits while its client leaves.
        with library._store.lock(catalog.find("small-1b")), open_socket(server, request) as connection:
            read_until(connection, b"waiting for another")
        wait_for(lambda: "small-1b" in [model.name for model in library.models()])


def test_a_pull_that_fails_says_so_in_the_stream_or_as_an_error(stocked: tuple[Rig, Client]) -> None:
    _, client = stocked
    lines = ndjson(client.post("/api/pull", json={"model": "gone-1b"}).content)
    assert "cannot be fetched" in lines[-1]["error"]
    whole = client.post("/api/pull", json={"model": "gone-1b", "stream": False})
    assert whole.status_code == 500
    assert "cannot be fetched" in whole.json()["error"]
    unknown = client.post("/api/pull", json={"model": "nope"})
    assert unknown.status_code == 404


def test_a_copy_answers_under_its_own_name(rig: Rig, client: Client) -> None:
    assert client.post("/api/copy", json={"source": MODEL_ID, "destination": "My-GPT"}).status_code == 200
    assert names(client) == [MODEL_ID, "my-gpt"]
    for name in ("my-gpt", "My-GPT:latest"):
        body = client.post("/api/generate", json={"model": name, "prompt": "hi", "stream": False}).json()
        assert body["response"] == "hello world"
    openai = {"model": "my-gpt", "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", json=openai).status_code == 200
    unknown = client.post("/api/copy", json={"source": "nope", "destination": "x"})
    assert unknown.status_code == 404


def test_a_created_model_has_its_system_prompt_and_parameters(rig: Rig, client: Client) -> None:
    create = {
        "model": "kind",
        "from": MODEL_ID,
        "system": "be kind",
        "parameters": {"temperature": 0.1, "num_predict": 3, "stop": ["x", "y"]},
        "license": ["MIT"],
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    }
    lines = ndjson(client.post("/api/create", json=create).content)
    assert lines[-1] == {"status": "success"}
    rig.reply("hello hello hello hello", ends=False)
    ask = {"model": "kind", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    body = client.post("/api/chat", json=ask).json()
    assert (body["done_reason"], body["eval_count"]) == ("length", 3)
    sequence = rig.runner.batches[-1].sequences[0]
    text = TOKENIZER.decode(sequence.known_token_ids[: sequence.num_prompt_tokens])
    assert text == "system\nbe kind\nuser\na\nassistant\nb\nuser\nhi\nassistant\n"
    assert sequence.sampling.temperature == 0.1
    client.post("/api/chat", json={**ask, "options": {"temperature": 0.7}})
    assert rig.runner.batches[-1].sequences[0].sampling.temperature == 0.7
    shown = client.post("/api/show", json={"model": "kind"}).json()
    assert (shown["system"], shown["license"]) == ("be kind", "MIT")
    assert shown["parameters"].count("stop") == 2
    assert shown["details"]["parent_model"] == MODEL_ID


def test_a_derived_model_outlives_a_restart(rig: Rig, client: Client) -> None:
    client.post("/api/create", json={"model": "kind:v2", "from": MODEL_ID, "system": "s", "stream": False})
    from appliance.derived_models import DerivedModels

    again = DerivedModels(rig.library._store.models_dir)
    assert [(m.name, m.system) for m in again.list()] == [("kind:v2", "s")]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"model": "a/b"}, "model"),
        ({"model": "../x"}, "model"),
        ({"from": None}, "from"),
        ({"model": MODEL_ID}, "model"),
        ({"parameters": {"temperature": -1}}, "parameters.temperature"),
        ({"template": "{{ .Prompt }}"}, "Go template"),
        ({"template": "{% if %}"}, "'template'"),
        ({"files": {"a": "b"}}, "files"),
        ({"quantize": "q4_0"}, "quantize"),
        ({"modelfile": "FROM x"}, "modelfile"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
    ],
)
def test_a_creation_that_cannot_be_honoured_stores_nothing(client: Client, fields: Any, word: str) -> None:
    answer = client.post("/api/create", json={"model": "new", "from": MODEL_ID, **fields})
    assert answer.status_code == 400
    assert word in answer.json()["error"]
    assert names(client) == [MODEL_ID]


def test_creating_from_an_unknown_model_is_404(client: Client) -> None:
    assert client.post("/api/create", json={"model": "new", "from": "nope"}).status_code == 404


def test_deleting_an_alias_keeps_the_model_and_deleting_a_model_frees_it(stocked: tuple[Rig, Client]) -> None:
    rig, client = stocked
    client.post("/api/pull", json={"model": "small-1b", "stream": False})
    client.post("/api/copy", json={"source": "small-1b", "destination": "alias"})
    assert names(client) == [MODEL_ID, "small-1b", "alias"]
    assert client.request("DELETE", "/api/delete", json={"model": "alias"}).status_code == 200
    assert names(client) == [MODEL_ID, "small-1b"]
    assert client.request("DELETE", "/api/delete", json={"name": "small:1b"}).status_code == 200
    assert names(client) == [MODEL_ID]
    assert not list(rig.library._store.models_dir.rglob("*.gguf"))
    assert client.request("DELETE", "/api/delete", json={"model": "small-1b"}).status_code == 404


def test_a_file_outside_the_store_is_not_deleted(rig: Rig, client: Client) -> None:
    answer = client.request("DELETE", "/api/delete", json={"model": MODEL_ID})
    assert answer.status_code == 400
    assert "outside the model store" in answer.json()["error"]
    assert rig.library.find(MODEL_ID).file.path.exists()


EVIL = [
    "../../etc/passwd",
    "a/../../b",
    "/abs",
    "C:\\x",
    "a%2f..%2fb",
    "a\u0000b",
    "con",
    "x" * 300,
    ".",
    "..",
    "sha256:../../x",
]


@pytest.mark.parametrize("name", EVIL)
def test_no_name_leaves_the_store(rig: Rig, client: Client, name: str, tmp_path: Path) -> None:
    store = rig.library._store.models_dir
    before = sorted(store.parent.rglob("*"))
    for path, body in (
        ("/api/show", {"model": name}),
        ("/api/pull", {"model": name}),
        ("/api/chat", {"model": name, "messages": [{"role": "user", "content": "x"}]}),
        ("/api/generate", {"model": name, "keep_alive": 0}),
        ("/api/copy", {"source": name, "destination": "y"}),
    ):
        assert client.post(path, json=body).status_code in (400, 404), path
    assert client.request("DELETE", "/api/delete", json={"model": name}).status_code in (400, 404)
    quoted = quote(name, safe="")
    for method in ("HEAD", "POST"):
        assert client.request(method, f"/api/blobs/{quoted}", content=b"x").status_code == 404
    if name != ".":  # the client itself takes this one out of the path
        assert client.get(f"/v1/models/{quoted}").status_code == 404
    assert sorted(store.parent.rglob("*")) == before
    if name == "con":  # harmless here: the file's own name is another
        return
    for path, body in (
        ("/api/copy", {"source": MODEL_ID, "destination": name}),
        ("/api/create", {"model": name, "from": MODEL_ID}),
    ):
        assert client.post(path, json=body).status_code == 400, path
    assert sorted(store.parent.rglob("*")) == before


def test_wrong_methods_and_paths_answer_in_ollamas_form(client: Client) -> None:
    for answer, status in (
        (client.get("/api/chat"), 405),
        (client.post("/api/tags"), 405),
        (client.get("/api/nope"), 404),
        (client.post("/api/push", json={"model": "x"}), 404),
    ):
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]
