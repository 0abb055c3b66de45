"""Megatron-FSDP (Megatron-Core 0.16.1 and its main branch): parameters, gradients and states in sharded buckets.

Input: a `Job`, later a `Plan`. Output: a `Framework` with a `MegatronFsdpStrategy`; `MegatronFsdpHooks`.
Start: `table.table`, `hooks.MegatronFsdpHooks`. All but the hand-over is that of `frameworks/megatron`.

`buckets`: which parameters share a bucket, and a rank's part of it. `chunks`: how tensors are laid in a bucket so that
each rank's part ends at the end of a row. `all_gather`: buckets gathered ahead of their use (`ParameterPrefetch`,
upstream `AllGatherPipeline`). `reduce_scatter`: the queue of whole gradients (`ReduceScatterQueue`, upstream
`GradReducePipeline`).
Upstream: `megatron/core/distributed/fsdp/src/megatron_fsdp/`.
"""
