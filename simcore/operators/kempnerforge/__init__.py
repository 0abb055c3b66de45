"""KempnerForge (commit 5666d0d16153) on eager PyTorch 2.13: dense layers and experts, operator by operator.

Input: `LayerKind`, `LayerWorkload` with `KempnerforgeOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`, `tensors.tensors`.

`implementation`: embedding, layers with tensor parallelism, head, loss, rotary tables; also its compiled variant.
`moe`: its router and its evenly filled grouped experts, and what a router module keeps of its last forward pass.
Upstream: `kempnerforge/model`, `kempnerforge/training/loss.py`. Its FSDP2 wrapping, precision and tensor parallel
plan: `frameworks/fsdp2/kempnerforge.py`.
"""
