"""Who may reuse whose computed prompt, over HTTP: the hits tell."""

from typing import Any

import pytest

from server.rig import Rig, completion, make_rig

PROMPT = "hello world " * 40  # 80 tokens: five blocks, of which four can be reused


def num_hits(rig: Rig, requests: list[tuple[str | None, dict[str, Any]]]) -> list[int]:
    """Send each request with its key, one after the other; return the cached tokens of each."""
    hits = []
    for key, fields in requests:
        before = rig.engine.snapshot().num_prefix_hit_tokens
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = completion(prompt=PROMPT, max_tokens=1, **fields)
        with rig.client(api_key=key) as client:
            assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
        rig.wait_idle()
        hits.append(rig.engine.snapshot().num_prefix_hit_tokens - before)
    return hits


@pytest.mark.parametrize(
    "fields",
    [{"user": "a"}, {"prompt_cache_key": "a"}, {"user": "b", "prompt_cache_key": "a"}, {"user": 5}],
)
def test_a_named_user_or_cache_shares_with_itself_alone(rig: Rig, fields: dict[str, Any]) -> None:
    first, again, unnamed, other = num_hits(
        rig, [(None, fields), (None, fields), (None, {}), (None, {"user": "c"})]
    )
    assert again > 0
    assert (first, unnamed, other) == (0, 0, 0)


def test_users_share_where_the_client_names_one_cache_for_them(rig: Rig) -> None:
    shared = {"prompt_cache_key": "office"}
    assert num_hits(rig, [(None, {"user": "a"} | shared), (None, {"user": "b"} | shared)])[1] > 0


def test_null_names_nobody(rig: Rig) -> None:
    assert num_hits(rig, [(None, {}), (None, {"user": None, "prompt_cache_key": None})])[1] > 0


def test_keys_keep_tenants_apart(rig: Rig) -> None:
    first, again, other, without = num_hits(rig, [("k1", {}), ("k1", {}), ("k2", {}), (None, {})])
    assert again > 0
    assert (first, other, without) == (0, 0, 0)


def test_choices_of_one_request_compute_the_prompt_once() -> None:
    with make_rig() as rig:
        num_prompt = len(rig.model.tokenizer.encode(PROMPT, parse_special=False))
        with rig.client() as client:
            body = completion(prompt=PROMPT, n=4, max_tokens=3)
            usage = client.post("/v1/completions", json=body).json()["usage"]
        assert usage["prompt_tokens"] >= num_prompt
        rig.wait_idle()
        snapshot = rig.engine.snapshot()
        assert snapshot.num_prompt_tokens == 4 * usage["prompt_tokens"]
        assert snapshot.num_prefix_hit_tokens == 3 * (usage["prompt_tokens"] - 1)
