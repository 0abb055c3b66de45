"""PyTorch FSDP2 (`fully_shard`, torch 2.13) and HSDP, around layers of several trainers.

Input: a `Job`, later a `Plan`. Output: a `Framework` with an `Fsdp2Strategy` and `Unit`s; `Fsdp2Hooks`.
Start: `table.table`, `hooks.FSDP2_HOOKS`.

`options`, `rules`, `checks`: prefetch and resharding, layouts of tensors, refusals. `units`: which `fully_shard`
calls wrap what, and whether each reshards after forward. `hand_over`: FSDP2's own hooks in upstream's order
(pre-forward, post-forward, pre-backward, post-backward, final callback). `all_gather`: the parameter half (all-gather
buffers, prefetch, reshard). `reduce_scatter`: the gradient half. `unit_bytes`: sizes of these buffers; `sizes`: all
sizes from which hooks compute their amounts.
`trainers`: what is set around the layers of each implementation: `torchtitan`,
`kempnerforge`, `hub` (transformers' and llm-foundry's are in `frameworks/common`).
Upstream: `torch/distributed/fsdp/_fully_shard/`. Automodel uses the same hooks with other units.
"""
