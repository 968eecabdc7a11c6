"""The dashboard without a screen: one snapshot as JSON, or sentences now and then. Knows no terminal."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tui.client import ApplianceClient, UnreachableError
from tui.plain import plain_lines
from tui.targets import Targets

EXIT_UNREACHABLE = 1

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What to tell: JSON once, or sentences, once or every `every_s` seconds."""

    is_json: bool = False
    is_once: bool = False
    every_s: float = 5.0
    targets: Targets = field(default_factory=Targets)


async def tell(client: ApplianceClient, telling: Telling, *, say: Write, complain: Write) -> int:
    """Return 0, or 1 where the one time it was to be told nobody answered; without a last time, goes on."""
    is_last = telling.is_json or telling.is_once
    async with client:
        while True:
            try:
                snapshot = await client.snapshot()
            except UnreachableError as error:
                complain(f"appliance: no appliance at {client.base_url}: {error}")
                if is_last:
                    return EXIT_UNREACHABLE
            else:
                as_json = telling.is_json
                say(
                    msgspec.json.encode(snapshot).decode()
                    if as_json
                    else "\n".join(plain_lines(snapshot, telling.targets))
                )
                if is_last:
                    return 0
            await asyncio.sleep(telling.every_s)
            say("")
