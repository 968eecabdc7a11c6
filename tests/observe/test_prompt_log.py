"""Recorded prompts: without secrets, bounded, read back, and only the user's."""

import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance.observe.prompt_log import PromptLog, read_prompts, redacted


def decode(token_ids: Sequence[int]) -> str:
    return " ".join(f"word{chr(97 + i % 26)}" for i in token_ids)


def write(file: Path, prompts: Sequence[Sequence[int]], most_bytes: int = 10_000) -> None:
    log = PromptLog(file, decode, most_bytes=most_bytes)
    for prompt in prompts:
        log.add(prompt)
    log.close()


def test_prompts_are_read_back_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "traffic" / "m.jsonl"
    write(file, [[0, 1], [2]])
    write(file, [[3]])
    assert read_prompts(file) == ["worda wordb", "wordc", "wordd"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_oldest_go_when_the_file_is_full(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    for number in range(60):
        write(file, [[number % 26] * 10], most_bytes=2000)
    kept = read_prompts(file)
    assert file.stat().st_size <= 2000
    assert 5 < len(kept) < 30
    assert kept[-1] == decode([59 % 26] * 10)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_long_prompt_keeps_its_ends(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    write(file, [[0] * 5000 + [1]], most_bytes=10**6)
    (text,) = read_prompts(file)
    assert 2040 <= len(text.split()) <= 2048
    assert text.endswith("worda wordb")


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_bytes(b'{"text": "good"}\nhalf a li\n[1]\n{"text": 3}\n\xff\n')
    assert read_prompts(file) == ["good"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("write to jo.doe+x@mail.example.org today", "write to [...] today"),
        ("GET https://user:secret@host.example/a", "GET https://[...]@host.example/a"),
        ("card 4111 1111 1111 1111 please", "card [...] please"),
        ("call 0049-30-1234567", "call [...]"),
        ("key sk-abcd1234efgh5678ijkl9012 here", "key [...] here"),
        ("use wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY now", "use [...] now"),
        ("password=hunter2 and more", "[...] and more"),
        ("Authorization: Bearer abc.def", "[...]"),
        ("in 2024 there were 12,500 of 3.14159", "in 2024 there were 12,500 of 3.14159"),
        ("an_ordinary_long_identifier_in_code()", "an_ordinary_long_identifier_in_code()"),
    ],
)
def test_secrets_are_blacked_out_and_other_text_is_not(text: str, kept: str) -> None:
    assert redacted(text) == kept


@pytest.mark.parametrize("part", ["-", "a-", "//:", "a.", "1 ", "a1/", "token = "])
def test_no_text_takes_long_to_search(part: str) -> None:
    """Ten times the time for ten times the text, not a hundred: with room for a busy machine."""
    short, long = (part * (count // len(part)) for count in (3_000, 30_000))

    def spent_s(text: str) -> float:
        began_s = time.process_time()
        redacted(text)
        return time.process_time() - began_s

    assert min(spent_s(long) for _ in range(3)) < 40 * max(spent_s(short) for _ in range(3)) + 0.01
