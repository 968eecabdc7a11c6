"""Measures how a long prompt and running streams disturb each other, on the real engine and a real model.

    python -m benchmarks.scheduling.interference --model FILE.gguf

Three parts, one after another: the prompt alone, four streams alone, and the prompt beside the streams. A
gap is the time between two tokens of a stream as its reader sees them. Writes the figures as JSON.
"""

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance import paths
from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.percentiles import nearest_rank
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import FinishEvent, TokenStream
from appliance.formats.gguf import read_gguf
from appliance.runtime.device import CPU
from appliance.runtime.layer_slices import LayeredBackend
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.runners import make_runner
from appliance.runtime.threads import usable_threads
from benchmarks.scheduling.scenarios import Bar

_CONTEXT, _NUM_STREAMS, _STREAM_PROMPT = 8192, 4, 128
_STEPS_ALONE = 500  # before and after the prompt; fewer make the P99 a matter of chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Seconds, and the two ratios that are promised."""

    slowdown: float
    kv_dtype: str
    num_prompt_tokens: int
    itl_p50_alone_s: float
    itl_p99_alone_s: float
    itl_p50_beside_s: float
    itl_p99_beside_s: float
    ttft_alone_s: float
    ttft_beside_s: float

    @property
    def itl_ratio(self) -> float:
        return self.itl_p99_beside_s / self.itl_p99_alone_s

    @property
    def ttft_ratio(self) -> float:
        return self.ttft_beside_s / self.ttft_alone_s


def interference_bars(found: Interference) -> tuple[Bar, ...]:
    """The two promises, which pull against each other."""
    return (
        Bar(
            measure=f"4 streams' P99 gap by {found.num_prompt_tokens:,} tokens, {found.kv_dtype} KV, real",
            on=f"{1e3 * found.itl_p99_beside_s:.0f} ms (P50 {1e3 * found.itl_p50_beside_s:.0f})",
            off=f"{1e3 * found.itl_p99_alone_s:.0f} ms undisturbed (P50 {1e3 * found.itl_p50_alone_s:.0f})",
            result=found.itl_ratio,
            promised="<= 2x",
            passes=found.itl_ratio <= 2,
        ),
        Bar(
            measure="that prompt's own time to its first token, real",
            on=f"{found.ttft_beside_s:.1f} s",
            off=f"{found.ttft_alone_s:.1f} s alone",
            result=found.ttft_ratio,
            promised="<= 2.5x",
            passes=found.ttft_ratio <= 2.5,
        ),
    )


def make_engine(
    model: Path, num_threads: int, kv_dtype: str, policies: Policies, *, activations: str = "auto"
) -> Engine:
    """The engine that serves, but for its thread: it is stepped by hand."""
    wishes = LoadWishes(
        backend="cpu",
        precision="auto",
        activations=activations,
        kv_dtype=kv_dtype,
        device=CPU,
        num_threads=num_threads,
        step_tokens=512,
        free_bytes=2**40,
        library_folder=paths.cache_dir() / "native",
    )
    with read_gguf(model) as file:
        backend = load_backend(file, wishes, lambda _text, _share: None).backend
    num_blocks = 4 * _CONTEXT // backend.kv_layout.block_size
    backend.attach_kv(num_blocks)
    scheduler = make_scheduler(
        BlockPool(num_blocks, backend.kv_layout.block_size),
        policies,
        max_sequences=32,
        step_tokens=512,
        context_length=_CONTEXT,
        enable_prefix_cache=False,
        num_layers=backend.num_layers if isinstance(backend, LayeredBackend) else 0,
    )
    return Engine(make_runner(backend), scheduler)


def measure(engine: Engine, num_prompt_tokens: int, *, slowdown: float, kv_dtype: str) -> Interference:
    """Run the three parts. The streams run on in front of and after the prompt, for the gaps alone."""
    ttft_alone_s, _ = _prefill(engine, num_prompt_tokens, [])
    streams = [_submit(engine, _STREAM_PROMPT) for _ in range(_NUM_STREAMS)]
    for _ in range(20):
        engine.step()
    _read(streams)
    alone = _gaps(engine, streams, _STEPS_ALONE)
    ttft_beside_s, beside = _prefill(engine, num_prompt_tokens, streams)
    alone += _gaps(engine, streams, _STEPS_ALONE)
    for stream in streams:
        stream.cancel()
    alone.sort()
    beside.sort()
    return Interference(
        slowdown=slowdown,
        kv_dtype=kv_dtype,
        num_prompt_tokens=num_prompt_tokens,
        itl_p50_alone_s=nearest_rank(alone, 50),
        itl_p99_alone_s=nearest_rank(alone, 99),
        itl_p50_beside_s=nearest_rank(beside, 50),
        itl_p99_beside_s=nearest_rank(beside, 99),
        ttft_alone_s=ttft_alone_s,
        ttft_beside_s=ttft_beside_s,
    )


def _submit(engine: Engine, num_prompt_tokens: int) -> TokenStream:
    prompt = [random.randint(300, 20_000) for _ in range(num_prompt_tokens)]
    return engine.submit(prompt, SamplingParams(temperature=0.0))


def _prefill(engine: Engine, num_tokens: int, streams: list[TokenStream]) -> tuple[float, list[float]]:
    """Return the prompt's time to its first token, and the streams' gaps meanwhile."""
    started_s = time.perf_counter()
    prompt = _submit(engine, num_tokens)
    gaps: list[float] = []
    num_output_tokens = engine.snapshot().num_output_tokens
    while True:
        gaps += _gaps(engine, streams, 1)
        made = engine.snapshot().num_output_tokens - num_output_tokens
        num_output_tokens += made
        if made > len(streams):
            break
    ttft_s = time.perf_counter() - started_s
    prompt.cancel()
    return ttft_s, gaps


def _gaps(engine: Engine, streams: list[TokenStream], num_steps: int) -> list[float]:
    gaps = []
    last_s = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
        _read(streams)
        now_s = time.perf_counter()
        gaps += [now_s - last_s] * len(streams)
        last_s = now_s
    return gaps


def _read(streams: list[TokenStream]) -> None:
    for stream in streams:
        assert not isinstance(next(stream), FinishEvent), "a stream ended before the measurement"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=usable_threads())
    parser.add_argument("--prompt", type=int, default=6400)
    parser.add_argument(
        "--slowdown", type=float, default=Policies().stream_slowdown, help="0 fills every step"
    )
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--activations", default="auto", help="int12: prompts by vectors everywhere")
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    policies = Policies(stream_slowdown=args.slowdown)
    engine = make_engine(args.model, args.threads, args.kv_dtype, policies, activations=args.activations)
    found = measure(engine, args.prompt, slowdown=args.slowdown, kv_dtype=args.kv_dtype)
    told = asdict(found) | {"itl_ratio": found.itl_ratio, "ttft_ratio": found.ttft_ratio}
    print(json.dumps(told, indent=1))
    if args.results:
        args.results.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
