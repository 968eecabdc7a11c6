"""The data plane: tensors, weights, the KV cache and forward passes. Knows no queues."""
