"""DeepSpeed 0.19.6: without ZeRO (stage 0), ZeRO-1, ZeRO-2 and ZeRO-3, offload to host memory and NVMe, hpZ, Ulysses.

Input: a `Job`, later a `Plan`. Output: a `Framework` with a `ZeroStrategy` or `WholeStrategy`; hooks of the stage.
Start: `adapter` (all stages), `table.zero_table`, `zero12_hooks`, `zero3_hooks`; stage 0: `whole_table`, `whole_hooks`.
Upstream's behaviour, in notes: `frameworks/deepspeed/strategy.py`.

ZeRO-1 and 2: `zero12_hooks` (gradient bucket, all-reduce, step), `partitions` (each rank's part of the flat group).
ZeRO-3: `zero3_hooks` (parameters gathered and released around each module; which stay gathered), `modules` (calls of
modules as hooks see them), `prefetch_trace` (the recorded order of these calls, which gathers ahead; distance to the
next use: `ReuseDistance`; frozen and packed weights: `LivePackedWeights`), `zero12_copies` (flat buffers of coalesced
gathers, used by ZeRO-3 only), `hpz` (secondary partitions: `HpzShards`), `reference` (a second engine, of a reference
model).
All stages: `sequences` (ranks that share them: Ulysses), `gradients` (without a bucket), `offload_gradients` and
`offload_buffers` (host memory; NVMe's rule for what is swapped is in `hardware/nvme.py`), `at_rest` (bytes at rest).
Upstream: `deepspeed/runtime/zero/`.
"""
