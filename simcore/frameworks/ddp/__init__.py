"""torch's DistributedDataParallel: whole parameters, gradients all-reduced in buckets; Unsloth's layers."""
