"""Complete kernel tables, ready for a backend to choose from."""

from kernels.attention import reference as attention
from kernels.embed import reference as embed
from kernels.gated import reference as gated
from kernels.kv import reference as kv
from kernels.linear import reference as linear
from kernels.norm import reference as norm
from kernels.ops import Ops
from kernels.rope import reference as rope


def reference_ops() -> Ops:
    """Return the plain torch operations: any device, any dtype, the yardstick of every other table."""
    return Ops(
        embed=embed.embed,
        linear=linear.linear,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        rope=rope.rope,
        write_kv=kv.write_kv,
        attention=attention.attention,
        gated_silu=gated.gated_silu,
        gated_gelu=gated.gated_gelu,
    )
