"""The real model with too little of everything: blocks, places and patience. Real sockets, real tokens."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.catalog import ModelFile
from product.conftest import RunningServer, end_server, start_server

PATH = "/v1/completions"
MAX_SEQUENCES = 4
# 16-bit pages of 32 tokens take 720 KiB: 11 of them hold 352 tokens.
FLAGS = ("--max-sequences", str(MAX_SEQUENCES), "--queue", "2", "--kv-memory", "8MiB", "--kv-dtype", "bf16")
# Tokens of an answer: long enough to be still running when the next begins; those of 60 were sometimes not.
ANSWER = 200
WORK = [
    ([1000 + 37 * number + i for i in range(40 + 10 * number)], ANSWER) for number in range(MAX_SEQUENCES)
]


@pytest.fixture(scope="module")
def crowded(model_file: ModelFile) -> Iterator[RunningServer]:
    running = start_server(*FLAGS)
    running.wait_ready()
    yield running
    assert end_server(running) == 0


@pytest.fixture
def client(crowded: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=crowded.url, timeout=600) as found:
        yield found
        assert until(lambda: is_empty(found)), "something of a request is left"


def body(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | more


def complete(client: httpx.Client, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (
        client.post(PATH, json=body(prompt, max_tokens, **more)).raise_for_status().json()
    )
    return answer


def snapshot(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/system/v1/snapshot").json()
    return found


def is_empty(client: httpx.Client) -> bool:
    found = snapshot(client)
    return not (found["requests"]["running"] or found["requests"]["waiting"] or found["kv"]["used_blocks"])


def until(is_so: Callable[[], bool], seconds: float = 120) -> bool:
    end_s = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def test_preempted_answers_are_those_of_an_undisturbed_run(client: httpx.Client) -> None:
    alone = [complete(client, *each) for each in WORK]
    before = snapshot(client)["requests"]["preemptions"]
    with ThreadPoolExecutor(len(WORK)) as clients:
        together = list(clients.map(lambda each: complete(client, *each), WORK))
    assert until(lambda: snapshot(client)["requests"]["preemptions"] > before)
    for one, other in zip(alone, together, strict=True):
        assert other["choices"] == one["choices"]
        assert other["usage"]["completion_tokens"] == one["usage"]["completion_tokens"] == ANSWER


def test_four_choices_share_one_prompt_and_are_alike_where_nothing_is_drawn(client: httpx.Client) -> None:
    prompt = [2000 + i for i in range(101)]
    first = snapshot(client)["throughput"]["prompt_tokens"]
    one = complete(client, prompt, 12)["choices"][0]["text"]
    # A snapshot may be a moment old.
    assert until(lambda: snapshot(client)["throughput"]["prompt_tokens"] >= first + 101)
    before = snapshot(client)["throughput"]
    four = complete(client, prompt, 12, n=4)
    assert [choice["text"] for choice in four["choices"]] == [one] * 4
    assert four["usage"]["prompt_tokens"] == 101
    # The first finds three full pages; the others all of the prompt but the token that chooses.
    assert until(lambda: snapshot(client)["throughput"]["prompt_tokens"] == before["prompt_tokens"] + 404)
    hits = snapshot(client)["throughput"]["prefix_hit_tokens"] - before["prefix_hit_tokens"]
    assert hits == 96 + 3 * 100


def test_what_can_never_fit_is_refused_with_the_numbers(client: httpx.Client) -> None:
    answer = client.post(PATH, json=body(list(range(1000, 1400)), 5))
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "400 tokens" in message
    assert "holds 352" in message
    assert "shorten the prompt by 49 tokens or raise --kv-memory" in message


def test_a_full_queue_says_when_to_come_back(client: httpx.Client) -> None:
    with ThreadPoolExecutor(12) as clients:
        answers = list(
            clients.map(lambda i: client.post(PATH, json=body([3000 + i], 40)), range(MAX_SEQUENCES + 8))
        )
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.status_code == 200 for answer in answers if answer not in refused)
    assert complete(client, [3000], 3)["usage"]["completion_tokens"] == 3


def test_a_deadline_ends_an_answer_with_the_tokens_so_far(client: httpx.Client) -> None:
    # A slow machine needs longer to its first token.
    for deadline in (0.5, 1, 2, 4, 8):
        found = client.post(PATH, json=body([4000], 2000, deadline=deadline)).json()
        if found.get("usage", {}).get("completion_tokens"):
            break
    assert found["choices"][0]["finish_reason"] == "deadline"
    assert 0 < found["usage"]["completion_tokens"] < 2000


def raw(client: httpx.Client, request: dict[str, Any], *, receive_buffer: int | None = None) -> socket.socket:
    content = json.dumps(request).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: {client.base_url.host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(30)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((client.base_url.host, client.base_url.port))
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("phase", ["prefilling", "decoding"])
def test_a_client_that_vanishes_gives_everything_back(client: httpx.Client, phase: str) -> None:
    # Neither could end by itself so soon: 250 tokens and more are to come.
    prompt = [5000 + i for i in range(100 if phase == "prefilling" else 5)]
    aborted = snapshot(client)["requests"]["aborted"]
    connection = raw(client, body(prompt, 2000, stream=True))
    assert until(lambda: snapshot(client)["requests"]["running"] == 1)
    if phase == "decoding":
        assert connection.recv(64)
    connection.close()
    assert until(lambda: is_empty(client))
    assert snapshot(client)["requests"]["aborted"] == aborted + 1


def num_unread_bytes(connection: socket.socket) -> int:
    """What the server's side of a connection has written and its client does not take, as Linux tells it."""
    (_, own), (_, peer) = connection.getsockname(), connection.getpeername()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if local.endswith(f":{peer:04X}") and remote.endswith(f":{own:04X}"):
            return int(queues.split(":")[0], 16)
    return 0


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux shows what a socket holds back")
def test_readers_that_stop_disturb_nobody_and_leave_nothing(client: httpx.Client) -> None:
    alone = complete(client, *WORK[0])["choices"]
    before = snapshot(client)
    # 1 to 2 KiB a token with its likeliest alternatives, into a socket that takes about as much.
    asked = body([5000], 2000, stream=True, logprobs=5)
    stalled = [raw(client, asked, receive_buffer=2048) for _ in range(2)]
    assert until(lambda: all(num_unread_bytes(connection) > 0 for connection in stalled))
    # They go on; what they write nobody takes.
    assert until(lambda: snapshot(client)["requests"]["running"] == 2)
    assert complete(client, *WORK[0])["choices"] == alone
    for connection in stalled:
        assert num_unread_bytes(connection) > 0
        connection.close()
    assert until(lambda: is_empty(client))
    now = snapshot(client)
    grown = now["memory"]["process_resident_bytes"] - before["memory"]["process_resident_bytes"]
    assert grown < 64 * 2**20
    assert now["requests"]["failed"] == before["requests"]["failed"]
    assert complete(client, *WORK[0])["choices"] == alone


def test_one_that_leaves_the_queue_harms_nobody(client: httpx.Client) -> None:
    prompt = WORK[0][0]
    alone = complete(client, prompt, 120)["choices"][0]["text"]
    started = threading.Semaphore(0)

    def follow(_: int) -> str:
        with client.stream("POST", PATH, json=body(prompt, 120, stream=True)) as answer:
            lines = answer.iter_lines()
            events = [next(lines)]
            started.release()
            events += lines
        chunks = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    with ThreadPoolExecutor(MAX_SEQUENCES) as clients:
        answers = [clients.submit(follow, number) for number in range(MAX_SEQUENCES)]
        # As many as run at once have begun to answer, so that the next one waits.
        assert all(started.acquire(timeout=60) for _ in range(MAX_SEQUENCES))
        waits = raw(client, body([6000], 50))
        time.sleep(0.05)
        waits.close()
        assert [answer.result() for answer in answers] == [alone] * MAX_SEQUENCES
