"""RoPE, KV write and quantization in one: reference and fast versions."""
