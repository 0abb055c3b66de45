"""Megatron-Core 0.16.1 with Transformer Engine: tensors and layers, operator by operator.

Input: `LayerKind`, `LayerWorkload` (tensor, context and expert parallel degrees, options). Output: `RecordedLayer`,
`TensorSpec`s of one model before it is split. Start: `implementation.record`, `tensors.tensors`.

`context`: the tape with a layer's parameters, and outputs that are discarded and computed again. `ops`: norm, linears,
grouped linears, adapters, activations; `parts`: their pieces that do not depend on the format; `fp8`: the same linears
in 8 and 4 bits. `attention`: fused self-attention and the dense MLP; `unfused`: attention as matrix products;
`latent`: MLA. `mamba`: Mamba-2. `moe`: router, all-to-all and flex dispatchers, grouped experts, shared expert;
`allgather`: the all-gather dispatcher; `biased`: experts with biases (GPT-OSS). `head`: embedding, final norm, output
layer, vocabulary parallel cross entropy. `mtp`: multi-token prediction. Gradient buffers, the distributed optimizer
and pipeline stages: `frameworks/megatron`.
"""
