"""The command line: what help costs, what each command says of itself, and what every failure exits with."""

import io
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import __version__
from appliance.__main__ import main, parsed, with_default_command
from formats.gguf_builder import write_tiny_llama

COMMANDS = ("serve", "run", "eval", "calibrate", "pull", "list", "show", "rm", "dashboard", "version")
HEAVY = (
    "torch",
    "numpy",
    "litestar",
    "uvicorn",
    "textual",
    "rich",
    "httpx",
    "msgspec",
    "tokenizers",
    "jinja2",
)
# The target is 0.3 s; a machine that tests are running on is given five times that.
MOST_SECONDS_OF_HELP = 1.5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("a b ü") / "tiny mödel.gguf", type_name="Q8_0")


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("APPLIANCE_")]:
        monkeypatch.delenv(name)
    for folder in ("config", "data", "cache", "state"):
        monkeypatch.setenv(f"XDG_{folder.upper()}_HOME", str(tmp_path / folder))
    # The native backend compiles itself on first use, which takes longer than all tests here together.
    monkeypatch.setenv("APPLIANCE_BACKEND", "eager")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Commands configure logging and threads: here that would outlive them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    torch = sys.modules.get("torch")
    num_threads = torch.get_num_threads() if torch else None
    yield
    root.handlers[:], root.level = handlers, level
    if torch:
        torch.set_num_threads(num_threads)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "appliance", *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_help_is_fast_and_names_every_command() -> None:
    times = []
    for _ in range(3):
        started_s = time.monotonic()
        code, out, err = finish(start("--help"))
        times.append(time.monotonic() - started_s)
        assert (code, err) == (0, "")
        assert all(f"\n    {command}" in out for command in COMMANDS)
        assert "exit codes" in out
    assert min(times) < MOST_SECONDS_OF_HELP


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["version"], ["--version"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import contextlib, io, sys\n"
        "from appliance.__main__ import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({arguments})\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: appliance {command}")
    assert "%(" not in out


def test_the_help_of_serve_shows_defaults_choices_and_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = capsys.readouterr().out
    for flag in [
        "--host",
        "--port",
        "--backend",
        "--device",
        "--precision",
        "--kv-dtype",
        "--kv-memory",
        "--context",
        "--max-sequences",
        "--step-tokens",
        "--threads",
        "--queue",
        "--deadline",
        "--api-key",
        "--no-dashboard",
        "--json-logs",
    ]:
        assert flag in out
    assert "auto|eager|cpu|cuda" in out
    assert "(default 11500)" in out
    assert "2GiB|60%" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["serve"]),
        (["--port", "80"], ["serve", "--port", "80"]),
        (["--no-dashboard"], ["serve", "--no-dashboard"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["--version"], ["--version"]),
        (["list"], ["list"]),
        (["run", "m", "--raw"], ["run", "m", "--raw"]),
    ],
)
def test_without_a_command_it_serves(arguments: list[str], expected: list[str]) -> None:
    assert with_default_command(arguments) == expected


def test_version_says_what_this_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"inference-appliance {__version__} (Python 3.")
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["serve", "--nonsense"], ["run", "x", "y", "--max-tokens", "few"]],
)
def test_what_cannot_be_parsed_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: appliance" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--threads", "0"], "--threads is '0'; the least is 1"),
        (["--step-tokens", "many"], "--step-tokens is 'many': a whole number is needed"),
        (["--precision", "int5"], "--precision is 'int5'; choose one of auto, f32"),
        (["--kv-memory", "lots"], "--kv-memory is 'lots'"),
        (["--settings", "absent.toml"], "absent.toml does not exist"),
        (["--max-tokens", "0"], "--max-tokens is 0; the least is 1"),
        (["--temperature", "3"], "--temperature is 3.0; it lies between 0 and 2"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--device", "gpu"], "--device is 'gpu'; choose auto, cpu, cuda or cuda:N"),
        (["--context", "513"], "--context is 513 and this model was made for at most 512"),
        (["--precision", "nf4", "--backend", "cpu"], "--backend cpu cannot run this: it runs the precisions"),
        (["--backend", "cuda"], "--backend cuda cannot be used"),
    ],
)
def test_a_bad_value_exits_with_2_and_says_what_is_allowed(
    tiny: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(["run", str(tiny), "hi", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("appliance: ")
    assert words in err


def test_environment_and_settings_file_count_on_the_command_line(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "my settings.toml"
    settings.write_text('precision = "int8-mixed"')
    arguments = ["run", str(tiny), "hi", "--settings", str(settings), "--max-tokens", "1"]
    assert main(arguments) == 2
    assert "--precision int8-mixed" in capsys.readouterr().err
    monkeypatch.setenv("APPLIANCE_PRECISION", "int4")
    assert main(arguments) == 2
    assert "--precision int4 does not run on the eager backend" in capsys.readouterr().err
    assert main([*arguments, "--precision", "f32"]) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2-135m-instrukt", "did you mean smollm2-135m-instruct"),
        ("zzzzzzzz", "see `appliance list` for the names"),
        ("./absent.gguf", "absent.gguf"),
    ],
)
@pytest.mark.parametrize("command", [["run", "{}", "hi"], ["show", "{}"]], ids=["run", "show"])
def test_an_unknown_model_exits_with_4_and_the_nearest_names(
    command: list[str], name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(name) for part in command]) == 4
    err = capsys.readouterr().err
    assert "does not exist" in err
    assert words in err


def test_the_file_next_to_a_mistyped_path_is_suggested(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny.with_name("tiny model.gguf")), "hi"]) == 4
    assert str(tiny) in capsys.readouterr().err


def test_a_foreign_or_truncated_file_exits_with_5(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign.gguf").write_bytes(b"PK\x03\x04" * 100)
    (tmp_path / "short.gguf").write_bytes(tiny.read_bytes()[:-100])
    for name in ("foreign.gguf", "short.gguf", str(tmp_path)):
        assert main(["run", name, "hi"]) == 5
        assert capsys.readouterr().err.startswith("appliance: ")


def test_a_pool_larger_than_the_memory_exits_with_7(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny), "hi", "--kv-memory", "900TiB"]) == 7
    assert "lower --kv-memory" in capsys.readouterr().err


def test_an_address_for_others_without_a_key_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", "--no-dashboard"]) == 2
    assert "--api-key" in capsys.readouterr().err


def test_a_taken_port_exits_with_8(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--no-dashboard"]) == 8
    assert str(port) in capsys.readouterr().err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_one_seed_gives_one_answer(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny), "hello world", "--max-tokens", "12", "--temperature", "1"]
    first, again, other = (answer(capsys, *arguments, "--seed", seed) for seed in ("7", "7", "8"))
    assert first == again != other


def test_a_prompt_can_come_from_standard_input(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--max-tokens", "12", "--temperature", "0"]
    expected = answer(capsys, str(tiny), "hello world", *arguments)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello world"))
    assert answer(capsys, str(tiny), "-", *arguments) == expected
    assert answer(capsys, str(tiny), "hello world", "--raw", *arguments) != expected
    assert answer(capsys, str(tiny), "hello world", "--system", "the", *arguments) != expected


def test_every_kv_type_answers(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kv_dtype in ("f32", "bf16", "f16", "int8"):
        assert answer(capsys, str(tiny), "hello", "--kv-dtype", kv_dtype, "--max-tokens", "3")


def test_a_prompt_longer_than_the_context_fails_with_how_much(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny), "x" * 600, "--raw"]) == 1
    assert "shorten the prompt by 89 tokens" in capsys.readouterr().err


def test_real_processes_answer_or_refuse(tiny: Path) -> None:
    """Side by side, since most of their time is importing torch."""
    limits = ("--max-tokens", "12", "--threads", "1")
    running = {
        "answer": start("run", str(tiny), "hello world", *limits),
        "cuda": start("run", str(tiny), "hi", "--backend", "cuda"),
        "int4": start("run", str(tiny), "hi", "--precision", "int4"),
        "unknown": start("serve", "smollm2-135m-instrukt", "--port", "0", "--no-dashboard", "--json-logs"),
    }
    ended = {name: finish(process) for name, process in running.items()}
    code, out, err = ended["answer"]
    assert (code, err) == (0, "")
    assert out.strip()
    for name, words in (
        ("cuda", "Without a GPU: --backend auto"),
        ("int4", "--precision int4 does not run on the eager backend"),
    ):
        code, out, err = ended[name]
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err
    code, out, err = ended["unknown"]
    assert code == 4
    assert "Listening on http://127.0.0.1:" in out
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert any("did you mean smollm2-135m-instruct" in message for message in messages)


@pytest.mark.parametrize(
    "arguments", [["serve", "a.gguf"], ["serve", "--model", "a.gguf"], ["--model", "a.gguf"]]
)
def test_a_model_is_named_by_place_or_by_flag(arguments: list[str]) -> None:
    args = parsed(with_default_command([*arguments, "--port", "1"]))
    assert (args.model, args.port) == ("a.gguf", "1")


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["--raw", "Tell me a joke"], "Tell me a joke"),
        (["Tell me a joke", "--raw"], "Tell me a joke"),
        (["Tell", "me", "--raw", "a", "joke"], "Tell me a joke"),
        (["--raw", "--", "-1 is what?"], "-1 is what?"),
        (["--raw"], None),
    ],
)
def test_a_prompt_stands_anywhere_and_needs_no_quotes(words: list[str], prompt: str | None) -> None:
    arguments = parsed(["run", "a.gguf", *words])
    assert (arguments.model, arguments.prompt, arguments.raw) == ("a.gguf", prompt, True)


@pytest.mark.parametrize("arguments", [["run", "a.gguf", "hi", "--rew"], ["list", "hi"]])
def test_what_no_command_knows_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(arguments)
    assert f"unrecognized arguments: {arguments[-1]}" in capsys.readouterr().err


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["run", "a.gguf", "hi", "--models", "x"])
    assert "--models" in capsys.readouterr().err
