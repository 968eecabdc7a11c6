"""Complete kernel tables, ready for a backend to choose from."""

from kernels.attention import reference as attention
from kernels.embed import reference as embed
from kernels.gated import reference as gated
from kernels.kv import reference as kv
from kernels.linear import reference as linear
from kernels.norm import reference as norm
from kernels.ops import Ops
from kernels.rope import reference as rope
from kernels.rope_kv import reference as rope_kv
from kernels.rows import reference as rows


def reference_ops() -> Ops:
    """Return the plain torch operations: any device, any dtype, the yardstick of every other table."""
    return Ops(
        embed=embed.embed,
        linear=linear.linear,
        linear_int8=linear.linear_int8,
        linear_int4=linear.linear_int4,
        quantize_tokens=linear.quantize_tokens,
        linear_int8_tokens=linear.linear_int8_tokens,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        rope=rope.rope,
        write_kv=kv.write_kv,
        rope_write_kv=rope_kv.rope_write_kv,
        copy_blocks=kv.copy_blocks,
        attention=attention.attention,
        gated_silu=gated.gated_silu,
        gated_gelu=gated.gated_gelu,
        select_rows=rows.select_rows,
    )


def gpu_ops() -> Ops:
    """Return the Triton operations, for CUDA devices from compute capability 8.0 (Ampere) on.

    Imports Triton, which not every machine has. On CPU tensors they run under its interpreter only.
    """
    from kernels.attention import gpu as attention_gpu
    from kernels.gated import gpu as gated_gpu
    from kernels.kv import gpu as kv_gpu
    from kernels.linear import gpu as linear_gpu
    from kernels.linear import gpu_int4, gpu_int8, gpu_int8_tokens
    from kernels.norm import gpu as norm_gpu
    from kernels.rope_kv import gpu as rope_kv_gpu
    from kernels.rows import gpu as rows_gpu

    return Ops(
        embed=embed.embed,  # one gather, which torch does at the memory's speed
        linear=linear_gpu.linear,
        linear_int8=gpu_int8.linear_int8,
        linear_int4=gpu_int4.linear_int4,
        quantize_tokens=gpu_int8_tokens.quantize_tokens,
        linear_int8_tokens=gpu_int8_tokens.linear_int8_tokens,
        rms_norm=norm_gpu.rms_norm,
        add_rms_norm=norm_gpu.add_rms_norm,
        rope=rope_kv_gpu.rope,
        write_kv=rope_kv_gpu.write_kv,
        rope_write_kv=rope_kv_gpu.rope_write_kv,
        copy_blocks=kv_gpu.copy_blocks,
        attention=attention_gpu.attention,
        gated_silu=gated_gpu.gated_silu,
        gated_gelu=gated_gpu.gated_gelu,
        select_rows=rows_gpu.select_rows,
    )
