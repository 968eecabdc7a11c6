"""Random short requests through the whole engine, and a pool sized from real free memory: what leaks?"""

import random
from typing import Any

import torch

from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import FinishEvent, TokenStream
from appliance.model.decoder import DecoderWeights
from appliance.runtime.cuda import CudaBackend, least_reserve
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.kv_plan import plan_kv
from appliance.runtime.runner import ModelRunner
from benchmarks.gpu.plan import CheckPlan
from benchmarks.gpu.steps import make_backend
from kernels.ops import Ops

_CONTEXT = 256
_STEP_TOKENS = 2048


def run_requests(plan: CheckPlan, weights: DecoderWeights, ops: Ops) -> dict[str, Any]:
    """Size a pool, fill it with requests in a few waves; return what was found, `problems` among it."""
    backend = make_backend(plan, weights, ops, has_graphs=True)
    found = _sized(plan, backend)
    # Few blocks, so that sequences are preempted and cached blocks evicted.
    num_blocks = max(plan.batches) * _CONTEXT // backend.kv_layout.block_size // 4
    backend.attach_kv(num_blocks)
    pool = BlockPool(num_blocks, backend.kv_layout.block_size)
    scheduler = make_scheduler(
        pool,
        Policies(),
        max_sequences=max(plan.batches),
        step_tokens=_STEP_TOKENS if plan.is_gpu else 64,
        context_length=_CONTEXT,
        queue_limit=plan.num_requests,
    )
    engine = Engine(ModelRunner(backend), scheduler, queue_limit=plan.num_requests)
    num_waves = 4
    held, num_finished, failures = [], 0, set[str]()
    rng = random.Random(5)
    for _ in range(num_waves):
        streams = [_submit(engine, plan, rng) for _ in range(plan.num_requests // num_waves)]
        while engine.step():
            pass
        for stream in streams:
            finish = _finish(stream)
            num_finished += finish.failure is None
            failures |= {finish.failure.message} if finish.failure else set()
        scheduler.check_invariants()
        held.append(torch.cuda.memory_allocated(plan.device) if plan.is_gpu else 0)
    problems = sorted(failures)
    if pool.num_available != num_blocks:
        problems.append(f"{num_blocks - pool.num_available} of {num_blocks} blocks are not free at the end")
    if held[-1] > held[0]:
        problems.append(f"{held[-1] - held[0]} bytes more are held after the last wave than after the first")
    backend.detach_kv()
    return found | {"num_finished": num_finished, "num_blocks": num_blocks, "problems": problems}


def _sized(plan: CheckPlan, backend: CudaBackend) -> dict[str, object]:
    """Size a pool as a load does, allocate it, and run the largest steps beside it."""
    if not plan.is_gpu:
        backend.rehearse(step_tokens=64, free_bytes=lambda: 2**30)
        return {"sizing": "not on a CPU"}
    torch.cuda.empty_cache()

    def free_bytes() -> int:
        return torch.cuda.mem_get_info(plan.device)[0]

    workspace = backend.rehearse(step_tokens=_STEP_TOKENS, free_bytes=free_bytes)
    total = torch.cuda.mem_get_info(plan.device)[1]
    demand = KVDemand(
        layout=backend.kv_layout,
        device_type=plan.device.type,
        num_layers=plan.config.num_layers,
        context_length=plan.config.context_length,
        max_sequences=4096,
        free_bytes=free_bytes() - workspace,
        reserve_bytes=least_reserve(total),
    )
    kv = plan_kv(demand)
    backend.attach_kv(kv.num_blocks)
    backend.run_largest(_STEP_TOKENS)
    left = free_bytes()
    backend.detach_kv()
    return {"sizing": kv.explanation, "workspace_bytes": workspace, "free_bytes_left": left}


def _submit(engine: Engine, plan: CheckPlan, rng: random.Random) -> TokenStream:
    prompt = [rng.randrange(plan.config.vocab_size) for _ in range(rng.randint(1, 48))]
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.8)),
        top_p=rng.choice((1.0, 0.9)),
        top_k=rng.choice((0, 40)),
        seed=rng.randrange(1000),
        max_tokens=rng.randint(1, 16),
    )
    return engine.submit(prompt, params)


def _finish(stream: TokenStream) -> FinishEvent:
    *_, finish = stream
    assert isinstance(finish, FinishEvent)
    return finish
