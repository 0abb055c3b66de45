"""Megatron-Core 0.16.1 with Transformer Engine: tensors and layers, operator by operator.

Input: `LayerKind`, `LayerWorkload` (parallel degrees) with `MegatronOptions`. Output: `RecordedLayer`, `TensorSpec`s
of one model before it is split. Start: `implementation.record`, `tensors.tensors`.

`ops`: linears in 16, 8 and 4 bits, norms, activations, recomputation, over the tape of a layer. `attention`: fused
self-attention and the dense MLP; `unfused`: attention as matrix products; `latent`: MLA. `mamba`: Mamba-2. `moe`: the
MoE layer; `rows`: numbers of rows; `router`; `dispatch_alltoall`, `dispatch_allgather`, `dispatch_flex`: its
dispatchers; `grouped_mlp`, `biased`: experts, those with biases (GPT-OSS). `head`: embedding, final norm, output layer,
vocabulary parallel cross entropy. `mtp`: multi-token prediction. Gradient buffers, the distributed optimizer
and pipeline stages: `frameworks/megatron`.
"""
