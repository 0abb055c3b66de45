"""PyTorch DistributedDataParallel (torch 2.13): whole parameters, gradients all-reduced in buckets.

Input: a `Job`, later a `Plan`. Output: a `Framework` with a `DdpStrategy`; `DdpHooks`. One GPU: training without it.
Start: `table.table`, `hooks.DdpHooks`.

`table`: options and refusals; the bucket sizes (`bucket_cap_mb`, the smaller first bucket) become fields of
`DdpStrategy`. `hooks`: buckets filled in the order in which gradients are ready, and reduced; [Note: the reducer] in
`frameworks/ddp/strategy.py` explains it. `unsloth`: Unsloth's `FastLanguageModel`, whose layers are
`operators/hf/unsloth.py`. Upstream: `torch/nn/parallel/distributed.py`, `torch/csrc/distributed/c10d/reducer.cpp`.
"""
