"""Several models: loaded when named, once however many ask, unloaded without cutting a reply."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.catalog import Catalog, FileSource, ModelEntry
from appliance.model_pool import ModelDefaults, ResidentModel
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from appliance.server.openai_defaults import recommended
from server.rig import ndjson, open_socket, post, read_until, request_bytes, sse_events, wait_for
from server.shelf import Shelf, make_shelf

CHAT = "/v1/chat/completions"


def ask(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


def said(client: Any, model: str, path: str = CHAT) -> str:
    answer = client.post(path, json=ask(model, max_tokens=20))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return str(body["content"][0]["text"] if "content" in body else body["choices"][0]["message"]["content"])


class Running:
    """A shelf on a real socket."""

    def __init__(self, shelf: Shelf) -> None:
        self.http = HttpServer(shelf.app(), bind("127.0.0.1", 0), state=shelf.state)

    def __enter__(self) -> HttpServer:
        self.http.start()
        return self.http

    def __exit__(self, *_: object) -> None:
        self.http.stop(grace_s=2.0)


def test_each_request_is_answered_by_the_model_that_it_names() -> None:
    with make_shelf("red", "blue") as shelf, shelf.client() as client:
        assert [said(client, name) for name in ("red", "blue", "red", "BLUE:latest")] == [
            "red",
            "blue",
            "red",
            "blue",
        ]
        assert said(client, "blue", "/v1/messages") == "blue"
        assert shelf.loads == ["red", "blue"]
        assert client.get("/v1/models/blue").json()["max_model_len"] == 256
        assert {model["id"] for model in client.get("/v1/models").json()["data"]} == {"red", "blue"}


def test_a_model_that_is_not_loaded_is_listed_and_shown_without_loading_it() -> None:
    with make_shelf("red") as shelf, shelf.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["red"]
        assert client.get("/v1/models/red").json()["max_model_len"] is None
        assert client.get("/v1/models/blue").status_code == 404
        assert shelf.loads == []


def test_an_alias_of_the_settings_is_a_name() -> None:
    with make_shelf("red", aliases={"gpt-4": "red"}) as shelf, shelf.client() as client:
        assert said(client, "gpt-4") == "red"
        assert said(client, "GPT-4") == "red"
        assert shelf.loads == ["red"]


def test_a_models_own_system_prompt_holds_where_the_conversation_has_none() -> None:
    with make_shelf("red") as shelf, shelf.client() as client:
        model = shelf.resident("red")
        plain = _prompt_tokens(client, shelf, model)
        with_system = _prompt_tokens(client, shelf, replace(model, defaults=ModelDefaults(system="be brief")))
        assert with_system > plain
        own = [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]
        asked = client.post(CHAT, json=ask("red", messages=own)).json()["usage"]["prompt_tokens"]
        assert plain < asked < with_system
        shown = client.post("/apply-template", json=ask("red")).json()
        assert shown["count"] == with_system
        assert "be brief" in shown["prompt"]


def _prompt_tokens(client: Any, shelf: Shelf, model: ResidentModel) -> int:
    shelf.state.pool.add(model)
    return int(client.post(CHAT, json=ask("red")).json()["usage"]["prompt_tokens"])


def test_one_load_however_many_ask() -> None:
    with make_shelf("red") as shelf, Running(shelf) as server:
        shelf.open.clear()
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(post(server, CHAT, ask("red"))[0]))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: shelf.state.residency.state_of("red") == "loading")
        shelf.open.set()
        for thread in threads:
            thread.join(10)
        assert answers == [200] * 8
        assert shelf.loads == ["red"]


def test_a_load_goes_on_when_who_asked_has_left() -> None:
    with make_shelf("red") as shelf, Running(shelf) as server:
        shelf.open.clear()
        open_socket(server, request_bytes(CHAT, ask("red"))).close()
        wait_for(lambda: shelf.state.residency.state_of("red") == "loading")
        shelf.open.set()
        wait_for(lambda: shelf.loaded() == ["red"])


def test_the_least_recently_used_goes_when_there_is_no_room() -> None:
    with make_shelf("red", "blue", "green", num_fit=2) as shelf, shelf.client() as client:
        for name in ("red", "blue", "red", "green"):
            assert said(client, name) == name
        assert sorted(shelf.loaded()) == ["green", "red"]
        assert said(client, "blue") == "blue"
        assert sorted(shelf.loaded()) == ["blue", "green"]


def test_no_more_models_are_loaded_than_the_setting_allows() -> None:
    with make_shelf("red", "blue", max_models=1) as shelf, shelf.client() as client:
        for name in ("red", "blue", "red"):
            assert said(client, name) == name
            assert shelf.loaded() == [name]


def test_eviction_waits_for_the_reply_under_way() -> None:
    with make_shelf("red", "blue", num_fit=1) as shelf, Running(shelf) as server:
        shelf.step_s, shelf.reply_tokens = 0.01, 60
        with open_socket(server, request_bytes(CHAT, ask("red", stream=True))) as stream:
            data = read_until(stream, b'"content":"')
            status, _ = post(server, CHAT, ask("blue", max_tokens=1))
            assert status == 200
            data += read_until(stream, b"[DONE]")
        events = sse_events(data.partition(b"\r\n\r\n")[2].replace(b"\r\n", b"\n"))
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert shelf.loaded() == ["blue"]


def test_a_pinned_model_is_never_evicted() -> None:
    with make_shelf("red", "blue", max_models=1) as shelf, shelf.client() as client:
        assert said(client, "red") == "red"
        shelf.state.pool.add(shelf.alive["red"], is_pinned=True)
        refused = client.post(CHAT, json=ask("blue"))
        assert refused.status_code == 503
        assert "--max-models" in refused.text
        client.post("/api/chat", json=ask("red", stream=False, keep_alive=0))
        assert shelf.loaded() == ["red"]


def test_a_model_that_fits_nowhere_says_so_and_the_next_request_is_answered() -> None:
    with make_shelf("red", "blue", num_fit=0) as shelf, shelf.client() as client:
        refused = client.post(CHAT, json=ask("red"))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_enough_memory"
        shelf.num_fit = 1
        assert said(client, "red") == "red"


def test_an_idle_model_is_unloaded_after_its_keep_alive() -> None:
    with make_shelf("red", "blue", keep_alive_s=0.3) as shelf, shelf.client() as client:
        assert said(client, "red") == "red"
        client.post("/api/chat", json=ask("blue", stream=False, keep_alive=-1))
        wait_for(lambda: shelf.loaded() == ["blue"])
        wait_for(lambda: list(shelf.alive) == ["blue"])
        assert said(client, "red") == "red"


def test_a_model_of_the_start_is_unloaded_after_its_keep_alive_too() -> None:
    with make_shelf("red", keep_alive_s=0.2) as shelf, shelf.client() as client:
        shelf.state.pool.add(shelf.resident("red"))
        assert said(client, "red") == "red"
        assert shelf.loads == []
        wait_for(lambda: not shelf.alive)


def test_a_model_of_the_start_that_nobody_asks_for_is_unloaded_too() -> None:
    with make_shelf("red", keep_alive_s=0.2) as shelf, Running(shelf) as server:
        shelf.state.pool.add(shelf.resident("red"))
        server.call(partial(shelf.state.residency.begin, "red"))
        wait_for(lambda: not shelf.alive)
        assert shelf.loads == []


def test_the_room_of_a_load_leaves_what_others_were_promised() -> None:
    with make_shelf("red", "blue") as shelf, shelf.client() as client:
        said(client, "red")
        said(client, "blue")
        assert shelf.rooms[0].promised_bytes == 0
        pool_bytes = shelf.alive["red"].facts.kv_pool_bytes
        assert 0 < shelf.rooms[1].promised_bytes <= pool_bytes


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    fields: dict[str, Any] = {
        "description": "",
        "architecture": "llama",
        "num_parameters": 1,
        "context_length": 64,
        "licence": "MIT",
        "size_bytes": 1,
        "sha256": "0" * 64,
    }
    entry = ModelEntry(
        model_id="far-1b", name="Far", file="f.gguf", sources=(FileSource(path="/nowhere"),), **fields
    )
    return Catalog((entry,), folder=tmp_path)


def test_a_model_that_is_not_on_disk_is_a_404_that_says_how_to_get_it(catalog: Catalog) -> None:
    with make_shelf("red", catalog=catalog) as shelf, shelf.client() as client:
        for path in (CHAT, "/v1/messages"):
            missing = client.post(path, json=ask("far-1b", max_tokens=1))
            assert missing.status_code == 404
            assert "appliance pull far-1b" in missing.text
        unknown = client.post(CHAT, json=ask("nothing"))
        assert unknown.status_code == 404
        assert "pull" not in unknown.text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "red/../red", "red\x00", "C:\\x"])
def test_no_name_is_a_path(name: str) -> None:
    with make_shelf("red") as shelf, shelf.client() as client:
        for path, body in (
            (CHAT, ask(name)),
            ("/system/v1/models/load", {"model": name}),
            ("/system/v1/models/pull", {"model": name}),
            ("/system/v1/models/unload", {"model": name}),
        ):
            assert client.post(path, json=body).status_code in (400, 404), path
        assert shelf.loads == []


def test_the_system_lists_loads_and_unloads(catalog: Catalog) -> None:
    with make_shelf("red", catalog=catalog) as shelf, shelf.client() as client:

        def states() -> dict[str, str]:
            models = client.get("/system/v1/models").json()["models"]
            return {model["id"]: model["state"] for model in models}

        assert states() == {"red": "installed", "far-1b": "available"}
        lines = ndjson(client.post("/system/v1/models/load", json={"model": "red"}).content)
        assert lines[0] == {"status": "loading"}
        assert lines[-1] == {"status": "success"}
        assert states()["red"] == "loaded"
        listed = client.post("/system/v1/models/unload", json={"model": "red"}).json()["models"]
        assert listed[0]["state"] in ("draining", "installed")
        wait_for(lambda: states()["red"] == "installed")
        assert client.post("/system/v1/models/load", json={"model": "red", "stream": False}).json() == {
            "status": "success"
        }
        assert shelf.loads == ["red", "red"]


def test_a_models_card_tells_what_its_makers_recommend() -> None:
    assert recommended({"temperature": 0.2, "repeat_penalty": 1.1, "num_ctx": 9, "stop": ["x"]}) == {
        "temperature": 0.2,
        "repetition_penalty": 1.1,
    }
    with make_shelf("red") as shelf, shelf.client() as client:
        assert client.get("/v1/models/red").json()["recommended"] == {}
