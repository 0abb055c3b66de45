"""torch's fully_shard and HSDP: units, hooks, all-gathers, reduce-scatters, and trainers of each implementation."""
