"""Launch numbers by kernel and variant. `python -m kernels.tune` rewrites them; so far chosen by hand."""

from kernels.launch import Launch, LaunchTable

# ruff: noqa: E501
# fmt: off
LAUNCH_TABLE: LaunchTable = {
    "attention_decode_kernel/64": ((80, Launch(num_warps=4, num_stages=3, block_n=64)),),
    "attention_decode_kernel/64-int8": ((80, Launch(num_warps=4, num_stages=3, block_n=64)),),
    "attention_decode_kernel/128": ((80, Launch(num_warps=4, num_stages=2, block_n=64)),),
    "attention_decode_kernel/128-int8": ((80, Launch(num_warps=4, num_stages=3, block_n=32)),),
    "attention_decode_kernel/256": ((80, Launch(num_warps=4, num_stages=2, block_n=32)),),
    "attention_decode_kernel/256-int8": ((80, Launch(num_warps=4, num_stages=2, block_n=32)),),
    "attention_prefill_kernel/64": ((80, Launch(num_warps=8, num_stages=2, block_m=128, block_n=64)),),
    "attention_prefill_kernel/64-int8": ((80, Launch(num_warps=8, num_stages=2, block_m=64, block_n=64)),),
    "attention_prefill_kernel/128": (
        (80, Launch(num_warps=8, num_stages=2, block_m=128, block_n=32)),
        (90, Launch(num_warps=8, num_stages=2, block_m=128, block_n=64)),
        (120, Launch(num_warps=8, num_stages=2, block_m=128, block_n=32)),
    ),
    "attention_prefill_kernel/128-int8": (
        (80, Launch(num_warps=8, num_stages=2, block_m=64, block_n=64)),
        (90, Launch(num_warps=8, num_stages=2, block_m=128, block_n=64)),
        (120, Launch(num_warps=8, num_stages=2, block_m=64, block_n=64)),
    ),
    "attention_prefill_kernel/256": ((80, Launch(num_warps=8, num_stages=2, block_m=64, block_n=32)),),
    "attention_prefill_kernel/256-int8": ((80, Launch(num_warps=8, num_stages=2, block_m=64, block_n=32)),),
    "attention_reduce_kernel/any": ((80, Launch(num_warps=4)),),
    "copy_blocks_kernel/any": ((80, Launch(num_warps=4, block_n=2048)),),
    "gated_kernel/any": ((80, Launch(num_warps=4, block_n=1024)),),
    "linear_int4_kernel/16": ((80, Launch(num_warps=4, num_stages=5, block_m=16, block_n=64)),),
    "linear_int4_kernel/32": ((80, Launch(num_warps=4, num_stages=4, block_m=32, block_n=64)),),
    "linear_int4_kernel/many": ((80, Launch(num_warps=8, num_stages=3, block_m=128, block_n=128)),),
    "linear_int8_kernel/16": ((80, Launch(num_warps=4, num_stages=4, block_m=16, block_n=32, block_k=256)),),
    "linear_int8_kernel/32": ((80, Launch(num_warps=4, num_stages=4, block_m=32, block_n=32, block_k=128)),),
    "linear_int8_kernel/many": ((80, Launch(num_warps=8, num_stages=3, block_m=128, block_n=128, block_k=64)),),
    "linear_int8_tokens_kernel/any": ((80, Launch(num_warps=8, num_stages=3, block_m=128, block_n=128, block_k=128)),),
    "quantize_at_once_kernel/any": ((80, Launch(num_warps=4, block_n=2048)),),
    "quantize_tokens_kernel/any": ((80, Launch(num_warps=4, block_n=2048)),),
    "rms_norm_kernel/512": ((80, Launch(num_warps=1)),),
    "rms_norm_kernel/2048": ((80, Launch(num_warps=4)),),
    "rms_norm_kernel/8192": ((80, Launch(num_warps=8)),),
    "rms_norm_kernel/32768": ((80, Launch(num_warps=16)),),
    "rope_write_kv_kernel/few": ((80, Launch(num_warps=1, block_m=1)),),
    "rope_write_kv_kernel/many": ((80, Launch(num_warps=4, block_m=16)),),
    "select_rows_kernel/any": ((80, Launch(num_warps=4, block_n=2048)),),
}
# fmt: on
