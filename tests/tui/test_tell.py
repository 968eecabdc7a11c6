import httpx
import msgspec
import pytest

from appliance.server.schemas import SystemSnapshot
from tui.client import ApplianceClient
from tui.tell import EXIT_UNREACHABLE, Telling, tell

pytestmark = pytest.mark.anyio


class Told(list[str]):
    """What was said; after `enough` lines the listener goes away."""

    def __init__(self, enough: int = 100) -> None:
        self.enough = enough

    def __call__(self, text: str) -> None:
        self.append(text)
        if len(self) == self.enough:
            raise KeyboardInterrupt


def client_of(*answers: object) -> ApplianceClient:
    """Gives the answers in turn; None is a refused connection."""
    left = list(answers)

    def answer(_request: httpx.Request) -> httpx.Response:
        snapshot = left.pop(0)
        if snapshot is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=msgspec.json.encode(snapshot))

    return ApplianceClient("http://127.0.0.1:11500", transport=httpx.MockTransport(answer))


async def test_json_is_one_snapshot(snapshots) -> None:
    said, complaints = Told(), Told()
    code = await tell(client_of(snapshots.busy()), Telling(is_json=True), say=said, complain=complaints)
    assert (code, complaints) == (0, [])
    assert msgspec.json.decode(said[0], type=SystemSnapshot) == snapshots.busy()


async def test_nobody_there_is_an_exit_code_and_one_line() -> None:
    said, complaints = Told(), Told()
    code = await tell(client_of(None), Telling(is_once=True), say=said, complain=complaints)
    assert (code, said) == (EXIT_UNREACHABLE, [])
    assert complaints == [
        "appliance: no appliance at http://127.0.0.1:11500: nothing listens at this address"
    ]


async def test_telling_survives_a_restart(snapshots) -> None:
    said, complaints = Told(enough=5), Told()
    client = client_of(snapshots.busy(), None, snapshots.idle())
    with pytest.raises(KeyboardInterrupt):
        await tell(client, Telling(every_s=0.01), say=said, complain=complaints)
    assert len(complaints) == 1
    assert ["running" in text for text in said if text] == [True, True]
    assert "0 running" in said[-2] or "0 running" in said[-1]
