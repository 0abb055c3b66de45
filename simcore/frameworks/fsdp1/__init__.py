"""PyTorch FullyShardedDataParallel (FSDP1, torch 2.13), also HSDP: each unit is one flat parameter.

Input: a `Job`, later a `Plan`. Output: a `Framework` with an `Fsdp1Strategy`; `Fsdp1Hooks`.
Start: `table.table`, `hooks.Fsdp1Hooks`. What happens to a unit: [Note: FSDP1] in `frameworks/fsdp1/strategy.py`.

`table`: options, defaults, refusals, which layers are units. `hooks`: when a flat parameter is gathered and freed.
`flat_parameters`: lengths of flat parameters and of a rank's part, padding included. `gradients`: from a unit's flat
gradient to the rank's part of the sum. `towers`: what the root does to images, and to a tower that is frozen.
Upstream: `torch/distributed/fsdp/fully_sharded_data_parallel.py` and its `_flat_param.py`.
"""
