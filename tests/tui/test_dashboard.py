import re

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tui.client import Outage

pytestmark = pytest.mark.anyio

SIZES = ((80, 24), (120, 40), (200, 50))
OUTAGE = Outage(reason="nothing listens at this address", num_tries=4, retry_s=2.0)
LOCKED = Outage(reason="it asks for a key", num_tries=4, retry_s=2.0, is_refused=True)


def screen_lines(pilot: Pilot) -> list[str]:
    """What the terminal would show, as text."""
    size = pilot.app.size
    strips = pilot.app.screen._compositor.render_strips(size)
    return [strip.text for strip in strips]


def screen_text(pilot: Pilot) -> str:
    return "\n".join(screen_lines(pilot))


def assert_nothing_overflows(pilot: Pilot) -> None:
    """Every line that a shown panel has to say fits inside it, and no two panels share a cell."""
    shown = [one for one in pilot.app.screen.walk_children() if one.is_on_screen and one.size.area]
    for panel in (one for one in shown if hasattr(one, "lines")):
        width, height = panel.content_size
        lines = panel.render().plain.split("\n")
        assert len(lines) <= height, panel
        assert max(len(line.rstrip()) for line in lines) <= width, (panel, lines)
    leaves = [one for one in shown if not one.children]
    for index, one in enumerate(leaves):
        for other in leaves[index + 1 :]:
            assert not one.region.intersection(other.region).area, (one, other)
    assert all(len(line) == pilot.app.size.width for line in screen_lines(pilot))
    assert "…" not in screen_text(pilot)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_gpu", [False, True])
async def test_a_busy_appliance_shows_every_figure_whole(shows, snapshots, size, has_gpu) -> None:
    async with shows(*(snapshots.busy(t / 2, has_gpu=has_gpu) for t in range(300)), size=size) as pilot:
        text = screen_text(pilot)
        assert_nothing_overflows(pilot)
        assert "● ready  SmolLM2-135M-Instruct" in text
        assert "int8-mixed · KV int8 · eager on cpu" in text
        assert "http://127.0.0.1:11500/v1" in text
        assert re.search(r"P50  142 ms .*P95  426 ms .*P99  994 ms", text)
        assert re.search(r"P50 14.2 ms .*P95 42.6 ms .*P99 99.4 ms", text)
        assert re.search(r"prompt\s+4,321 tok/s", text)
        assert re.search(r"KV   ━+  63% 0.76/1.20 GiB", text)
        for number in ("645", "120", "259"):
            assert number in text
        assert re.search(r"RAM  ━+  19% 3.00/16.0 GiB", text)
        for number in ("32", "8", "12,034", "107", "41", "205", "113"):
            assert re.search(rf"[a-z]\s+{number}\b", text), number
        assert ("VRAM" in text) == has_gpu
        assert ("64 °C" in text) == has_gpu
        assert "187%" in text


@pytest.mark.parametrize("size", SIZES)
async def test_rows_are_sorted_running_first_and_oldest_first(shows, snapshots, size) -> None:
    async with shows(snapshots.busy(), size=size) as pilot:
        rows = [line for line in screen_lines(pilot) if "● running" in line]
        assert len(rows) >= 4
        ids = [int(re.search(r"12\d\d", row).group()) for row in rows]
        assert ids == [1200 + n for n in range(len(rows))]
        assert re.search(r"1200\s+● running\s+1m 40s\s+1,234\s+1,300\s+━+\s+67\s+13.4", rows[0])


@pytest.mark.parametrize("size", SIZES)
async def test_loading_shows_progress_and_no_empty_panels(shows, snapshots, size) -> None:
    async with shows(snapshots.loading(), size=size) as pilot:
        text = screen_text(pilot)
        assert_nothing_overflows(pilot)
        assert re.search(r"◌ loading ━+  42%", text)
        assert "reading layer 12 of 30" in text
        assert "memory 1.00/16.0 GiB" in text
        assert "P50" not in text


@pytest.mark.parametrize("size", SIZES)
async def test_an_appliance_never_asked_shows_how_to_ask(shows, snapshots, size) -> None:
    async with shows(snapshots.idle(), size=size, api_key="sesame") as pilot:
        text = screen_text(pilot)
        assert_nothing_overflows(pilot)
        assert "curl http://127.0.0.1:11500/v1/chat/completions" in text
        assert "Authorization: Bearer YOUR_API_KEY" in text
        assert '"model": "SmolLM2-135M-Instruct"' in text
        assert '"content": "Hello"}]}\'' in text
        assert "sesame" not in text
        assert "1,024" in text


async def test_the_first_request_is_one_valid_command(shows, snapshots) -> None:
    import json
    import shlex

    from tui.widgets.card import first_request

    async with shows(snapshots.idle()) as pilot:
        words = shlex.split("\n".join(first_request(pilot.app.dashboard.frame)))
    assert words[:2] == ["curl", "http://127.0.0.1:11500/v1/chat/completions"]
    assert json.loads(words[-1])["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("size", SIZES)
async def test_a_failed_appliance_says_why_in_full(shows, snapshots, size) -> None:
    reason = (
        "SmolLM2-135M-Instruct needs 1.20 GiB and 0.83 GiB is free; close other programs, or choose "
        "--precision int4, which would fit in 0.61 GiB"
    )
    async with shows(snapshots.loading("failed", reason), size=size) as pilot:
        text = screen_text(pilot)
        assert_nothing_overflows(pilot)
        assert "✖ failed" in text
        assert reason in " ".join(text.split())


@pytest.mark.parametrize("size", SIZES)
async def test_a_lost_appliance_keeps_its_last_numbers_and_says_so(shows, snapshots, size) -> None:
    async with shows(snapshots.busy(), OUTAGE, size=size) as pilot:
        assert_nothing_overflows(pilot)
        assert "○ reconnecting (try 4)" in screen_text(pilot)
        assert "P50  142 ms" in screen_text(pilot)
        assert pilot.app.screen.has_class("-stale")


@pytest.mark.parametrize("size", SIZES)
async def test_an_appliance_never_found_is_looked_for(shows, size) -> None:
    async with shows(OUTAGE, size=size) as pilot:
        assert_nothing_overflows(pilot)
        assert "No appliance at http://127.0.0.1:11500" in screen_text(pilot)
        assert "Nothing listens at this address." in screen_text(pilot)
    async with shows(LOCKED, size=size) as pilot:
        assert_nothing_overflows(pilot)
        assert "The appliance at http://127.0.0.1:11500 is locked" in screen_text(pilot)
        assert "appliance serve" not in screen_text(pilot)
    async with shows(size=size) as pilot:
        assert "Looking for an appliance at http://127.0.0.1:11500" in screen_text(pilot)


async def test_draining_is_said_beside_the_model(shows, snapshots) -> None:
    draining = replace(snapshots.busy(), phase="draining", phase_detail="3 requests are being finished")
    async with shows(draining) as pilot:
        assert "◐ draining  SmolLM2-135M-Instruct  3 requests are being finished" in screen_text(pilot)


async def test_what_grew_does_not_move_its_neighbours(shows, snapshots) -> None:
    small, large = snapshots.busy(1.0), snapshots.busy(1.5)
    grown = replace(
        large,
        requests=replace(
            large.requests, running=999, waiting=0, finished=99_999, failed=1, preemptions=12_345
        ),
        kv=replace(large.kv, used_blocks=1, free_blocks=1023),
    )
    places = []
    for snapshot in (small, grown):
        async with shows(snapshot) as pilot:
            assert_nothing_overflows(pilot)
            words = ("wait", "done", "fail", "preempt", "cached", "free", "GiB", "output", "P95")
            places.append([[line.find(word) for line in screen_lines(pilot)] for word in words])
    assert places[0] == places[1]


@pytest.mark.parametrize("size", [(60, 20), (79, 30), (100, 18), (250, 70)])
async def test_odd_sizes_still_show_the_latencies(shows, snapshots, size) -> None:
    async with shows(snapshots.busy(), size=size) as pilot:
        assert "P50  142 ms" in screen_text(pilot)


async def test_pause_freezes_the_numbers_and_catches_up(shows, snapshots) -> None:
    from tui.client import Sighting

    async with shows(snapshots.busy(10.0)) as pilot:
        await pilot.press("p")
        pilot.app.dashboard.take(Sighting(snapshot=snapshots.busy(7300.0), is_polled=False))
        await pilot.pause()
        assert "up 10 s" in screen_text(pilot)
        assert "paused" in screen_text(pilot)
        await pilot.press("p")
        assert "up 2h 01m" in screen_text(pilot)


async def test_d_changes_the_theme_and_back(shows, snapshots) -> None:
    async with shows(snapshots.busy()) as pilot:
        dark = pilot.app.screen.background_colors[1]
        await pilot.press("d")
        assert pilot.app.screen.background_colors[1].brightness > 0.9 > dark.brightness
        await pilot.press("d")
        assert pilot.app.screen.background_colors[1] == dark


async def test_help_opens_and_closes(shows, snapshots) -> None:
    async with shows(snapshots.busy()) as pilot:
        await pilot.press("question_mark")
        assert "pause the display, not the appliance" in screen_text(pilot)
        await pilot.press("q")
        assert "pause the display" not in screen_text(pilot)
        assert pilot.app.is_running


def luminance(colour: str) -> float:
    """Relative, as the accessibility guidelines (WCAG 2) define it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_role_is_legible_in_both_themes() -> None:
    from tui.palette import THEMES

    for theme in THEMES:
        for ground in (theme.background, theme.panel, theme.variables["cursor"]):
            for role in ("ink", "dim", "p50", "p95", "p99", "warn", "bad"):
                low, high = sorted([luminance(ground), luminance(theme.variables[role])])
                ratio = (high + 0.05) / (low + 0.05)
                assert ratio >= 4.5, (theme.name, role, ground, round(ratio, 2))
