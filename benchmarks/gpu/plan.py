"""What one run checks and how long it may take: all of it on a GPU, a tiny likeness on a CPU."""

from dataclasses import dataclass

import torch

from appliance.model.config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """Shapes and numbers of a run; `limit_s` is when no new section begins."""

    device: torch.device
    config: ModelConfig
    dtype: torch.dtype
    precisions: tuple[str, ...]
    library_precisions: tuple[str, ...]  # by bitsandbytes, where it is there; few cells of them
    compiled_cells: tuple[tuple[int, int], ...]  # (batch, context) of plain torch under torch.compile
    compiler: str
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    engine_batches: tuple[int, ...]
    engine_steps: int
    num_requests: int
    repeats: int
    copy_bytes: int
    matmul_size: int
    limit_s: float

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


def llama(
    *, num_layers: int, hidden: int, inner: int, heads: int, kv_heads: int, head_size: int, vocab: int
) -> ModelConfig:
    rope = RopeConfig(theta=500_000.0, rotary_size=head_size)
    return ModelConfig(
        architecture="llama",
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        vocab_size=vocab,
        context_length=32_768,
        norm_eps=1e-5,
        ropes=(rope,) * num_layers,
    )


def gpu_plan() -> CheckPlan:
    return CheckPlan(
        device=torch.device("cuda", torch.cuda.current_device()),
        config=llama(
            num_layers=32, hidden=4096, inner=14_336, heads=32, kv_heads=8, head_size=128, vocab=128_256
        ),
        dtype=torch.bfloat16,
        precisions=("bf16", "int8", "int4"),
        library_precisions=("nf4", "llm.int8"),
        compiled_cells=((1, 512), (64, 512)),
        compiler="inductor",
        batches=(1, 8, 32, 64, 128),
        contexts=(512, 4096),
        prompts=(512, 4096, 16_384),
        engine_batches=(1, 64),
        engine_steps=64,
        num_requests=10_000,
        repeats=5,
        copy_bytes=2**30,
        matmul_size=8192,
        limit_s=330.0,
    )


def tiny_plan() -> CheckPlan:
    """The same sections on a CPU, in seconds: shows that a run works, and measures nothing."""
    return CheckPlan(
        device=torch.device("cpu"),
        config=llama(num_layers=2, hidden=64, inner=96, heads=4, kv_heads=2, head_size=16, vocab=100),
        dtype=torch.float32,
        precisions=("bf16", "int8", "int4"),
        library_precisions=("nf4", "llm.int8"),
        compiled_cells=((3, 20),),
        compiler="eager",  # what traces the network, without what compiles it
        batches=(1, 3),
        contexts=(20,),
        prompts=(33,),
        engine_batches=(1, 3),
        engine_steps=4,
        num_requests=12,
        repeats=1,
        copy_bytes=2**20,
        matmul_size=64,
        limit_s=3600.0,
    )
