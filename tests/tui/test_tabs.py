"""Each tab at three sizes against a stored text of the screen, and what its keys do."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from appliance.server.schemas import DomainSnapshot, KVSnapshot, LayerLossSnapshot, QualitySnapshot
from tui.targets import Targets

pytestmark = pytest.mark.anyio

STORED = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40), (200, 60))
GIB = 2**30

MODELS = {
    "/api/tags": {
        "models": [
            {
                "name": "qwen3-0.6b",
                "size": 639_000_000,
                "details": {"parameter_size": "596.05M", "quantization_level": "Q8_0"},
            },
            {
                "name": "SmolLM2-135M-Instruct",
                "size": 98_362_432,
                "details": {"parameter_size": "134.52M", "quantization_level": "Q4_1"},
            },
        ]
    },
    "/api/ps": {"models": [{"name": "SmolLM2-135M-Instruct", "size": 1_400_000_000}]},
    "/system/v1/models": {
        "models": [
            {"id": "qwen3-0.6b", "state": "loading", "size_bytes": 639_000_000, "progress": 0.4},
            {"id": "gemma-3-270m", "state": "available", "size_bytes": 253_113_024},
        ]
    },
    "/system/v1/logs": {
        "pid": 4242,
        "lines": [
            {"number": 1, "at_s": 0.0, "level": "info", "logger": "a", "message": "loaded in 1.2 s"},
            {
                "number": 2,
                "at_s": 1.0,
                "level": "warning",
                "logger": "a",
                "message": "chatcmpl-12345abcde the disk is almost full",
                "request_id": "chatcmpl-12345abcde",
            },
        ],
    },
}


class Appliance:
    """Answers the dashboard's other questions, and remembers what it was told to do."""

    def __init__(self, words: tuple[str, ...] = ("A pool ", "of pages.")) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.words = words
        self.goes_on = asyncio.Event()
        self.is_cut_off = False

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "GET" and path in MODELS:
            body = MODELS[path]
            is_old = path == "/system/v1/logs" and request.url.params.get("after") != "0"
            return httpx.Response(200, json={**body, "lines": []} if is_old else body)
        if request.method == "GET":
            await asyncio.sleep(3600)
        self.asked.append((path, json.loads(request.content)))
        if path == "/v1/chat/completions":
            return httpx.Response(200, content=self._stream())
        return httpx.Response(404, json={"error": "there is no such model"})

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            for word in self.words:
                chunk = {"choices": [{"delta": {"content": word}}]}
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            await self.goes_on.wait()
            usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
            yield b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n"
        finally:
            self.is_cut_off = not self.goes_on.is_set()


async def until(condition: Callable[[], bool], pilot) -> None:
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not come to that in 10 s")


def pooled(snapshot):
    return replace(
        snapshot,
        kv=KVSnapshot(
            block_size=16,
            num_blocks=1024,
            used_blocks=645,
            cached_blocks=120,
            free_blocks=259,
            pool_bytes=GIB,
            wasted_slots=516,
            allocations=12_345,
            refused_allocations=3,
            evicted_blocks=77,
            prefix_hit_rate=0.33,
        ),
    )


@pytest.mark.parametrize("size", SIZES)
async def test_each_tab_looks_as_it_was_approved(shows, snapshots, read_screen, size, tmp_path) -> None:
    """After a wished change: read the screen in the file that the failure names and copy it over."""
    frames = [pooled(snapshots.busy(3600 + t / 2)) for t in range(20)]
    wrong = []
    async with shows(*frames, size=size, answers=Appliance()) as pilot:
        for tab, settled in (
            ("requests", "Stages of 1200"),
            ("models", "gemma"),
            ("kv", "12,345"),
            ("quality", "measured"),
            ("logs", "almost full"),
            ("chat", "Ask the model"),
        ):
            pilot.app.action_show_tab(tab)
            await until(lambda settled=settled: settled in read_screen(pilot), pilot)
            await pilot.pause()
            screen = re.sub(r"\d\d:\d\d:\d\d ", "HH:MM:SS ", read_screen(pilot))
            stored = STORED / f"{tab}-{size[0]}x{size[1]}.txt"
            if not stored.exists() or stored.read_text(encoding="utf-8") != screen:
                (tmp_path / stored.name).write_text(screen, encoding="utf-8")
                wrong.append(str(tmp_path / stored.name))
    assert not wrong


async def test_keys_and_clicks_choose_tabs(shows, snapshots, read_screen) -> None:
    async with shows(snapshots.busy()) as pilot:
        await pilot.press("4")
        assert "KV map" in read_screen(pilot)
        await pilot.press("right_square_bracket")
        assert "Nothing was measured yet" in read_screen(pilot)
        await pilot.click("#tabs", offset=(3, 0))
        assert "Time to first token" in read_screen(pilot)
        await pilot.press("7", "4")
        assert pilot.app.screen.query_one("#question").value == "4"
        await pilot.press("f2")
        assert pilot.app.dashboard.active == "requests"
        await pilot.press("7", "f8")
        assert "Keys" in read_screen(pilot)
        await pilot.press("f3")
        assert pilot.app.dashboard.active == "models"
        assert "Keys" not in read_screen(pilot)


async def test_a_chat_streams_and_keeps_the_conversation(shows, snapshots, read_screen) -> None:
    appliance = Appliance()
    async with shows(snapshots.idle(), answers=appliance) as pilot:
        await pilot.press("7", *"why", "enter")
        await until(lambda: "A pool of pages." in read_screen(pilot), pilot)
        appliance.goes_on.set()
        await until(lambda: "5 tokens" in read_screen(pilot), pilot)
        await pilot.press(*"and", "enter")
        await until(lambda: len(appliance.asked) == 2, pilot)
    said = appliance.asked[1][1]["messages"]
    assert said == [
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": "A pool of pages."},
        {"role": "user", "content": "and"},
    ]


async def test_an_answer_is_read_as_markdown_and_a_question_as_typed(shows, snapshots, read_screen) -> None:
    appliance = Appliance(
        ("## Po", "ols\n\nA **po", "ol** of `pages`:\n\n- one\n", "- two\n\n```python\nx = 1\n", "```\n")
    )
    async with shows(snapshots.idle(), answers=appliance, size=(80, 40)) as pilot:
        await pilot.press("7", *"a **b** [c]", "enter")
        await until(lambda: "x = 1" in read_screen(pilot), pilot)
        screen = read_screen(pilot)
        assert "a **b** [c]" in "".join(screen.splitlines()[:8])
        assert re.search(r"model\s+Pools", screen)
        assert "A pool of pages:" in screen
        assert "• one" in screen
        assert "```" not in screen
        assert "##" not in screen


async def test_a_long_answer_is_followed_and_leaving_amid_it_ends_at_once(
    shows, snapshots, read_screen
) -> None:
    appliance = Appliance(tuple(f"word {number}\n\n" for number in range(50)))
    async with shows(snapshots.idle(), answers=appliance) as pilot:
        await pilot.press("7", *"why", "enter")
        await until(lambda: "word 49" in read_screen(pilot), pilot)
        await pilot.press("ctrl+c")
    assert appliance.is_cut_off


async def test_escape_stops_an_answer_and_then_leaves_the_field(shows, snapshots, read_screen) -> None:
    appliance = Appliance()
    async with shows(snapshots.idle(), answers=appliance) as pilot:
        await pilot.press("7", *"why", "enter")
        await until(lambda: "A pool of pages." in read_screen(pilot), pilot)
        await pilot.press("escape")
        await until(lambda: "stopped" in read_screen(pilot), pilot)
        assert appliance.is_cut_off
        await pilot.press("escape", "1")
        assert pilot.app.dashboard.active == "live"


async def test_what_the_appliance_refuses_is_said_in_its_words(shows, snapshots, read_screen) -> None:
    appliance = Appliance()
    async with shows(snapshots.busy(), answers=appliance) as pilot:
        await pilot.press("3")
        await until(lambda: "gemma" in read_screen(pilot), pilot)
        await pilot.press("g", *"nope", "enter")
        await until(lambda: "there is no such model" in read_screen(pilot), pilot)
        assert appliance.asked == [("/api/pull", {"model": "nope"})]


async def test_warnings_alone_are_shown_when_asked(shows, snapshots, read_screen) -> None:
    async with shows(snapshots.busy(), answers=Appliance()) as pilot:
        await pilot.press("6")
        await until(lambda: "loaded in" in read_screen(pilot), pilot)
        await pilot.press("w")
        await until(lambda: "loaded in" not in read_screen(pilot), pilot)
        assert "almost full" in read_screen(pilot)


async def test_a_missed_target_alarms_and_a_new_one_quiets_it(shows, snapshots, read_screen) -> None:
    async with shows(snapshots.busy(), targets=Targets(ttft_s=0.4)) as pilot:
        assert "▲ TTFT P95 426 ms, over 400 ms" in read_screen(pilot)
        assert pilot.app.screen.query_one("#ttft").has_class("-alarm")
        await pilot.press("t", "backspace", "backspace", "backspace", *"500", "enter")
        await pilot.pause()
        assert "▲" not in read_screen(pilot)
        assert "target 500 ms" in read_screen(pilot)
        assert not pilot.app.screen.query_one("#ttft").has_class("-alarm")


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_measured_of_the_quality_is_shown(shows, snapshots, read_screen, size) -> None:
    prose = DomainSnapshot(
        perplexity=12.34, reference_perplexity=12.0, mean_kl=0.0123, p99_kl=0.456, top1_agreement=0.967
    )
    quality = QualitySnapshot(
        variant="int4",
        against="f32",
        measured_s=time.time() - 3600,
        overall=replace(prose, perplexity=13.0),
        domains={"prose": prose, "arithmetic": replace(prose, top1_agreement=0.9)},
        failures=("arithmetic: 90.0% of the first choices agree; at least 95% should",),
    )
    busy = snapshots.busy()
    losses = tuple(
        LayerLossSnapshot(layer=n, error=(n + 1) / 1000, effect=1 / (n + 1), num_kept=n % 2)
        for n in range(30)
    )
    model = replace(busy.model, quality=quality, layer_losses=losses)
    async with shows(replace(busy, model=model), size=size) as pilot:
        pilot.app.action_show_tab("quality")
        await pilot.pause()
        text = read_screen(pilot)
        assert "Measured 1h 00m ago, int4 against f32" in text
        assert re.search(r"prose\s+12.34\s+12.00\s+\+2.8%\s+96.7%\s+0.0123\s+0.456", text)
        assert re.search(r"all\s+13.00\s+12.00\s+\+8.3%", text)
        assert "! arithmetic: 90.0% of the first choices agree" in text
        assert "Nothing was measured" not in text
        assert re.search(r"INT8 by layer ▁.*█  0.1–3.0%, worst: layer 29", text)
        assert bool(re.search(r" 0 +0.10%  ━+ +1.0000000", text)) == (size[1] > 24)
        assert bool(re.search(r"29 +3.00%", text)) == (size[1] == 60)
