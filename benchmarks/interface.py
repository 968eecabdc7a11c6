"""What the interface costs beside the model: HTTP per streamed token, compiling a large schema, a taken port.

python -m benchmarks.interface MODEL; about half a minute. A runner that sleeps stands in for the network, so
that what the HTTP thread spends is all that is counted: its own CPU time, over chat streams that a second
process reads. Medians and spread; exit code 1 past a bar.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from appliance.catalog import ModelFile
from appliance.config import Settings
from appliance.engine.assembly import ALL_OFF, make_scheduler
from appliance.engine.batch import Batch, SequenceOutput, StepResult
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.loader import load_model
from appliance.model_pool import ModelPool, ResidentModel
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from appliance.text.constraints import ConstraintCompiler
from appliance.text.grammar import json_grammar

STREAMS, ROUNDS = 32, 5
# The difference between answers of these lengths: what requests cost besides is in both.
SHORT, LONG = 32, 160
STEP_S = 0.005
TOKEN_BAR_US, SCHEMA_BAR_MS, PORT_BAR_S = 60.0, 300.0, 2.0
PROPERTIES = 200


class SleepingRunner:
    """Says the same words to everybody, a token a step."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    def launch(self, batch: Batch) -> "_Step":
        return _Step(batch)

    def collect(self, pending: "_Step") -> StepResult:
        time.sleep(STEP_S)
        return StepResult(
            outputs=tuple(
                SequenceOutput(
                    sequence_id=s.sequence_id,
                    token_ids=(self._token_ids[s.num_output_tokens % len(self._token_ids)],)
                    if s.sampling
                    else (),
                )
                for s in pending.batch.sequences
            )
        )


class _Step:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def token_us(model: ResidentModel) -> list[float]:
    """CPU time of the HTTP thread for each streamed token, round by round."""
    words = model.tokenizer.encode(
        "It was a bright day, and the clocks of the town struck. ", parse_special=False
    )
    scheduler = make_scheduler(
        BlockPool(1024, 16),
        ALL_OFF,
        max_sequences=STREAMS,
        step_tokens=8192,
        context_length=512,
        enable_prefix_cache=True,
    )
    engine = Engine(SleepingRunner(words), scheduler)
    state = ApplianceState(pool=ModelPool())
    state.pool.add(replace(model, engine=engine, close=engine.stop))
    state.enter("ready")
    engine.start()
    before = set(threading.enumerate())
    server = HttpServer(
        create_app(state, access=AccessRules(api_key=None)), bind("127.0.0.1", 0), state=state
    )
    server.start()
    (thread,) = set(threading.enumerate()) - before
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)

    def spent_s(num_tokens: int) -> float:
        began_s = time.clock_gettime(clock)
        command = [sys.executable, __file__, "--read", server.url, model.model_id, str(num_tokens)]
        subprocess.run(command, check=True)
        return time.clock_gettime(clock) - began_s

    try:
        spent_s(SHORT)  # warms up
        differences = [spent_s(LONG) - spent_s(SHORT) for _ in range(ROUNDS)]
        found = [1e6 * difference / (STREAMS * (LONG - SHORT)) for difference in differences]
    finally:
        server.stop(0.0)
        engine.stop()
    return found


def read_streams(url: str, model: str, num_tokens: int) -> None:
    """Ask for all streams at once and read each to its end."""
    host, port = url.removeprefix("http://").split(":")
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = json.dumps(
        {"model": model, "messages": messages, "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    sockets = [socket.create_connection((host, int(port))) for _ in range(STREAMS)]
    for connection in sockets:
        connection.sendall(head.encode() + body)
    readers = [threading.Thread(target=_read_all, args=(connection, num_tokens)) for connection in sockets]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def _read_all(connection: socket.socket, num_tokens: int) -> None:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    answer = b"".join(parts)
    assert answer.count(b"data: ") >= num_tokens, answer[:500]
    assert b"[DONE]" in answer, answer[-500:]


def schema_ms(model: ResidentModel) -> list[float]:
    """Time to compile a strict schema of nested objects, none seen before; the token table is made."""
    compiler = ConstraintCompiler(model.tokenizer)
    compiler.compile(json_grammar({"type": "object"}, field="schema"))
    found = []
    for number in range(ROUNDS):
        schema = nested_schema(number)
        began_s = time.perf_counter()
        compiler.compile(json_grammar(schema, field="schema"))
        found.append(1e3 * (time.perf_counter() - began_s))
    return found


def nested_schema(number: int) -> dict[str, object]:
    """PROPERTIES properties in objects of ten, each object inside the one before; all required, no others."""
    inner: dict[str, object] = {}
    for level in range(PROPERTIES // 10):
        kinds = ({"type": "string"}, {"type": "integer"}, {"type": "boolean"})
        names = [f"p{number}_{level}_{i}" for i in range(10)]
        properties: dict[str, object] = {name: kinds[i % 3] for i, name in enumerate(names)}
        if inner:
            properties[names[-1]] = inner
        inner = {
            "type": "object",
            "properties": properties,
            "required": names,
            "additionalProperties": False,
        }
    return inner


def taken_port_s(path: Path) -> list[float]:
    """How soon a second appliance says that the port is taken and ends."""
    found = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for _ in range(3):
            began_s = time.perf_counter()
            command = [
                sys.executable,
                "-m",
                "appliance",
                "serve",
                str(path),
                "--port",
                port,
                "--no-dashboard",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            found.append(time.perf_counter() - began_s)
            assert done.returncode == 8, done.stderr
            assert port in done.stderr, done.stderr
    return found


def report(what: str, values: list[float], bar: float, unit: str) -> bool:
    """Print one row; whether it is within its bar."""
    middle = statistics.median(values)
    spread = f"{min(values):.2f} to {max(values):.2f}"
    verdict = "pass" if middle < bar else "MISS"
    print(f"{what}: {middle:.2f} {unit} ({spread}), bar {bar:g}: {verdict}", flush=True)
    return middle < bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    path = parser.parse_args().model
    model = load_model(
        replace(Settings(), threads=1, context=512),
        ModelFile(model_id="m", path=path),
        lambda _text, _share: None,
    )
    passes = [
        report(f"schema of {PROPERTIES} nested properties", schema_ms(model), SCHEMA_BAR_MS, "ms"),
        report(f"HTTP thread, {STREAMS} streams", token_us(model), TOKEN_BAR_US, "us of CPU a token"),
    ]
    model.close()
    passes.append(report("a taken port is told", taken_port_s(path), PORT_BAR_S, "s"))
    return 0 if all(passes) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read_streams(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
