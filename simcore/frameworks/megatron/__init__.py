"""Megatron-Core 0.16.1 with Megatron-Bridge: gradient buffers, distributed optimizer, TP, PP, CP, EP.

Input: a `Job`, later a `Plan`. Output: a `Framework` with a `MegatronDdpStrategy`; `MegatronHooks`.
Start: `table.table`, `hooks.MEGATRON_HOOKS`.

Table: `options` (of the framework, and of each layer), `libraries` (of kernels), `rules` (how tensors are cut over
tensor and expert parallel ranks), `precision` (stored, master and gradient formats), `checks` (refusals, each with its
rule), `recompute` (activation recomputation), `fp8` (fp8 and NVFP4 recipes, cached weights), `cuda_graphs`, `lora`
(Bridge's matcher), `layerwise_optimizer` (Muon dealt out whole: `LayerwiseShards`). Pipeline: `stages` (layers of each
stage, virtual stages), `pipeline_layout` (layout strings). Hooks: `hooks` (main gradients, buckets, reduce-scatter,
parameter all-gather), `sizes` (from which hooks compute their amounts), `flat_parameters` (a rank's buffers and their
padding), `buffers` (tensors laid end to end and cut into buckets).
Upstream: `megatron/core/distributed/`, `megatron/core/optimizer/`, `megatron/core/transformer/`.
"""
