"""Snapshots of an appliance in each state, and an app that shows them without a network."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import httpx
import pytest
from textual.pilot import Pilot

from appliance.server.schemas import (
    GpuSnapshot,
    KVSnapshot,
    LatencySnapshot,
    LiveSequence,
    MemorySnapshot,
    ModelSnapshot,
    Percentiles,
    RequestCounts,
    SystemSnapshot,
    Throughput,
)
from tui.app import DashboardApp
from tui.client import ApplianceClient, Outage, Sighting
from tui.quit_hook import QuitHook
from tui.targets import Targets

GIB = 2**30

SIZES = ((80, 24), (120, 40), (200, 50))

Shows = Callable[..., AbstractAsyncContextManager[Pilot[int]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def sequence(number: int, *, status: str = "running", age_s: float = 12.0) -> LiveSequence:
    is_running = status == "running"
    return LiveSequence(
        id=1200 + number,
        status=status,  # type: ignore[arg-type]
        age_s=age_s,
        prompt_tokens=1234 + number,
        computed_tokens=1300 + number if is_running else 0,
        output_tokens=67 if is_running else 0,
        output_tokens_per_s=13.4 if is_running else None,
    )


def forty_sequences() -> tuple[LiveSequence, ...]:
    """32 running, 8 waiting, given in no order."""
    waiting = [sequence(32 + n, status="waiting", age_s=8.0 - n / 2) for n in range(8)]
    return (*waiting, *(sequence(n, age_s=100.0 - n) for n in range(32)))


def _percentiles(p50_s: float) -> Percentiles:
    return Percentiles(count=124, p50_s=p50_s, p95_s=3 * p50_s, p99_s=7 * p50_s)


NOTHING = Percentiles(count=0)


def loading(phase: str = "loading", detail: str = "reading layer 12 of 30") -> SystemSnapshot:
    return SystemSnapshot(
        version="0.1.0",
        pid=4242,
        phase=phase,  # type: ignore[arg-type]
        phase_detail=detail,
        phase_progress=0.42 if phase == "loading" else None,
        uptime_s=3.2,
        memory=MemorySnapshot(process_resident_bytes=GIB, available_bytes=9 * GIB, limit_bytes=16 * GIB),
    )


def idle(uptime_s: float = 20.0, pid: int = 4242) -> SystemSnapshot:
    return SystemSnapshot(
        version="0.1.0",
        pid=pid,
        phase="ready",
        uptime_s=uptime_s,
        cpu_percent=0.4,
        model=ModelSnapshot(
            id="SmolLM2-135M-Instruct",
            architecture="llama",
            num_parameters=134_515_008,
            context_length=8192,
            precision="int8-mixed",
            kv_dtype="int8",
            weights_bytes=140_000_000,
            backend="eager",
            device="cpu",
            num_threads=2,
        ),
        requests=RequestCounts(
            running=0, waiting=0, finished=0, aborted=0, failed=0, rejected=0, preemptions=0
        ),
        throughput=Throughput(
            output_tokens_per_s=0.0,
            prompt_tokens_per_s=0.0,
            output_tokens=0,
            prompt_tokens=0,
            prefix_hit_tokens=0,
        ),
        latency=LatencySnapshot(window_s=60, ttft=NOTHING, tpot=NOTHING, itl=NOTHING, queue=NOTHING),
        kv=KVSnapshot(
            block_size=16,
            num_blocks=1024,
            used_blocks=0,
            cached_blocks=0,
            free_blocks=1024,
            pool_bytes=GIB + GIB // 5,
        ),
        memory=MemorySnapshot(process_resident_bytes=3 * GIB, available_bytes=10 * GIB, limit_bytes=16 * GIB),
    )


def busy(uptime_s: float = 3600.0, *, has_gpu: bool = False) -> SystemSnapshot:
    from msgspec.structs import replace

    gpu = GpuSnapshot(
        name="NVIDIA H200",
        memory_used_bytes=61 * GIB,
        memory_total_bytes=139 * GIB,
        utilization_percent=87.0,
        temperature_c=64.0,
    )
    return replace(
        idle(uptime_s),
        cpu_percent=187.0,
        requests=RequestCounts(
            running=32, waiting=8, finished=12_034, aborted=107, failed=41, rejected=205, preemptions=113
        ),
        throughput=Throughput(
            output_tokens_per_s=1356.0,
            prompt_tokens_per_s=4321.0,
            output_tokens=184_220,
            prompt_tokens=912_334,
            prefix_hit_tokens=301_000,
        ),
        latency=LatencySnapshot(
            window_s=60,
            ttft=_percentiles(0.142),
            tpot=_percentiles(0.0142),
            itl=_percentiles(0.0131),
            queue=_percentiles(0.0012),
        ),
        kv=KVSnapshot(
            block_size=16,
            num_blocks=1024,
            used_blocks=645,
            cached_blocks=120,
            free_blocks=259,
            pool_bytes=GIB + GIB // 5,
        ),
        gpus=(gpu,) if has_gpu else (),
        sequences=forty_sequences(),
    )


class Snapshots:
    """The states, for tests to take from one fixture."""

    busy = staticmethod(busy)
    idle = staticmethod(idle)
    loading = staticmethod(loading)
    sequence = staticmethod(sequence)


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots()


def screen_text(pilot: Pilot[int]) -> str:
    """What the terminal would show, as text."""
    strips = pilot.app.screen._compositor.render_strips(pilot.app.size)
    return "\n".join(strip.text for strip in strips)


@pytest.fixture
def read_screen() -> Callable[[Pilot[int]], str]:
    return screen_text


async def _silence(_request: httpx.Request) -> httpx.Response:
    await anyio.sleep_forever()
    raise AssertionError("slept for ever")


@pytest.fixture
def shows() -> Shows:
    """Runs the app at a size, having taken the given events, and yields its pilot."""

    @asynccontextmanager
    async def show(
        *events: SystemSnapshot | Outage,
        size: tuple[int, int] = (80, 24),
        quit_hook: QuitHook | None = None,
        api_key: str | None = None,
        answers: Callable[[httpx.Request], object] = _silence,
        targets: Targets | None = None,
    ) -> AsyncIterator[Pilot[int]]:
        client = ApplianceClient("http://127.0.0.1:11500", api_key, httpx.MockTransport(answers))  # type: ignore[arg-type]
        app = DashboardApp(client, quit_hook, targets)
        async with app.run_test(size=size) as pilot:
            for event in events:
                is_outage = isinstance(event, Outage)
                app.dashboard.take(event if is_outage else Sighting(snapshot=event, is_polled=False))
            await pilot.pause()
            yield pilot

    return show
