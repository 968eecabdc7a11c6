"""The log line of a request, from the real path: its numbers right, its text nowhere."""

import logging

import pytest
from litestar.testing import TestClient

from server.rig import Rig, chat, open_socket, request_bytes, serve, wait_for


def requests_logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "appliance.requests"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_request_is_one_line_without_its_text(
    rig: Rig, client: TestClient, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"role": "user", "content": "a secret prompt"}
    client.post("/v1/chat/completions", json=chat(stream=stream) | {"messages": [secret]})
    (line,) = requests_logged(caplog)
    assert line.output_tokens == len(rig.runner.replies)
    assert line.finish_reason == "stop"
    assert line.ttft_s > 0
    assert line.request_id.startswith("chatcmpl-")
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "secret" not in logged
    assert "hello" not in logged


def test_a_client_that_went_away_is_logged_as_such(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.runner.step_s = 0.005
    rig.reply("a", ends=False)
    with serve(rig) as server:
        connection = open_socket(server, request_bytes("/v1/chat/completions", chat(stream=True)))
        wait_for(lambda: rig.engine.snapshot().num_output_tokens > 2)
        connection.close()
        wait_for(lambda: requests_logged(caplog))
        (line,) = requests_logged(caplog)
        assert line.finish_reason == "client gone"
        assert line.levelno == logging.INFO
        assert line.prompt_tokens > 0
        assert line.output_tokens > 2
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
