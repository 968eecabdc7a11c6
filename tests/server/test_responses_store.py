"""How long responses are kept, and by whom they are seen."""

import pytest

from appliance.server.responses_schemas import InputItem, Json, ResponseBody
from appliance.server.responses_store import ResponsesStore, UnknownResponse


def body(response_id: str, text: str = "hello") -> ResponseBody:
    output: list[Json] = [
        {"type": "message", "id": f"msg_{response_id}", "role": "assistant", "content": text}
    ]
    return ResponseBody(
        id=response_id,
        created_at=0,
        instructions=None,
        max_output_tokens=None,
        model="m",
        output=output,
        parallel_tool_calls=True,
        previous_response_id=None,
        reasoning={},
        store=True,
        temperature=1.0,
        text={},
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        top_p=1.0,
        metadata={},
    )


def ask(text: str) -> list[InputItem]:
    return [InputItem(id=f"item_{text}", role="user", content=text)]


def test_a_tenant_sees_its_own_alone() -> None:
    store = ResponsesStore()
    store.keep("a", body("r1"), ask("one"), ())
    assert store.get("a", "r1").conversation[0].content == "one"
    assert store.item("a", "msg_r1", param="x").content == "hello"
    for read in (lambda: store.get("b", "r1"), lambda: store.item("b", "msg_r1", param="x")):
        with pytest.raises(UnknownResponse):
            read()
    with pytest.raises(UnknownResponse):
        store.delete("b", "r1")
    assert store.get("a", "r1").body.id == "r1"


def test_the_oldest_go_when_the_bytes_are_full() -> None:
    store = ResponsesStore(max_bytes=20_000)
    for index in range(100):
        store.keep("a", body(f"r{index}", "x" * 2000), ask("one"), ())
    kept = [index for index in range(100) if _has(store, f"r{index}")]
    assert kept == list(range(kept[0], 100))
    assert 2 <= len(kept) <= 9
    store.keep("a", body("huge", "x" * 30_000), ask("one"), ())
    assert not any(_has(store, response_id) for response_id in ("huge", "r99"))


def test_they_are_forgotten_with_age() -> None:
    now_s = 0.0
    store = ResponsesStore(max_age_s=10.0, clock=lambda: now_s)
    store.keep("a", body("r1"), ask("one"), ())
    now_s = 9.0
    assert _has(store, "r1")
    store.keep("a", body("r2"), ask("two"), ())
    now_s = 11.0
    assert not _has(store, "r1")
    assert _has(store, "r2")


def _has(store: ResponsesStore, response_id: str) -> bool:
    try:
        store.get("a", response_id)
    except UnknownResponse:
        return False
    return True
