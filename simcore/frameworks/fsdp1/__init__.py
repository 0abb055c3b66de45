"""torch's FullyShardedDataParallel: units as flat parameters."""
