"""Megatron-FSDP: buckets of whole units, gathered ahead of their use and reduced into a queue."""
