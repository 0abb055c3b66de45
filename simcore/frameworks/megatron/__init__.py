"""Megatron-Core 0.16.1 and Megatron-Bridge: gradient buffers, the distributed optimizer, stages, formats."""
