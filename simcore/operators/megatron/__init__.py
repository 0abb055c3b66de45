"""Megatron-Core 0.16.1: tensors, layers, token dispatchers, context parallelism and fp8, operator by operator."""
