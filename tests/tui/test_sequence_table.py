import pytest
from msgspec.structs import replace

from tui.client import Sighting
from tui.widgets.sequence_table import SequenceTable

pytestmark = pytest.mark.anyio


async def take(pilot, snapshot) -> None:
    pilot.app.dashboard.take(Sighting(snapshot=snapshot, is_polled=False))
    await pilot.pause()


def table_of(pilot) -> SequenceTable:
    return pilot.app.dashboard.query_one(SequenceTable)


async def test_the_cursor_stays_on_its_sequence_and_its_line_while_rows_come_and_go(shows, snapshots) -> None:
    before = snapshots.busy(1.0)
    async with shows(before) as pilot:
        await pilot.press("pagedown", *["down"] * 9)
        table = table_of(pilot)
        held, line = table.cursor_sequence, table.cursor_row - table.scroll_offset.y
        finished = tuple(one for one in before.sequences if one.id not in (1200, 1203, 1204))
        await take(pilot, replace(before, uptime_s=1.5, sequences=finished))
        assert table.cursor_sequence.id == held.id
        assert table.cursor_row - table.scroll_offset.y == line


async def test_without_a_cursor_the_table_stays_at_its_top(shows, snapshots) -> None:
    before = snapshots.busy(1.0)
    async with shows(before) as pilot:
        older = snapshots.sequence(99, age_s=500.0)
        await take(pilot, replace(before, uptime_s=1.5, sequences=(*before.sequences, older)))
        assert table_of(pilot).cursor_sequence.id == 1299
        assert table_of(pilot).scroll_offset.y == 0


async def test_keys_move_within_the_rows_and_bring_the_cursor_into_view(shows, snapshots) -> None:
    async with shows(snapshots.busy()) as pilot:
        table = table_of(pilot)
        await pilot.press("end")
        assert table.cursor_sequence.status == "waiting"
        assert table.cursor_row == 39
        assert table.scroll_offset.y == 40 - table.scrollable_content_region.height
        await pilot.press("down", "home", "up")
        assert table.cursor_row == 0
        assert table.scroll_offset.y == 0
        await pilot.press("pagedown", "escape")
        assert table.scroll_offset.y == 0


async def test_a_cursor_whose_rows_are_gone_rests_on_the_last(shows, snapshots) -> None:
    before = snapshots.busy(1.0)
    async with shows(before) as pilot:
        await pilot.press("end")
        await take(pilot, replace(before, uptime_s=1.5, sequences=before.sequences[-2:]))
        assert table_of(pilot).cursor_row == 1
        await take(pilot, replace(before, uptime_s=2.0, sequences=()))
        assert table_of(pilot).cursor_sequence is None
        assert "Idle" in "".join(table_of(pilot).render_line(y).text for y in range(5))


async def test_a_click_puts_the_cursor_there(shows, snapshots) -> None:
    async with shows(snapshots.busy()) as pilot:
        await pilot.click(SequenceTable, offset=(5, 3))
        assert table_of(pilot).cursor_row == 3
