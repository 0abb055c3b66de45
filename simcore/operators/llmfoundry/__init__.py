"""llm-foundry 0.3.0 under Composer 0.16 on eager PyTorch: the layers of MPT, operator by operator.

Input: `LayerKind`, `LayerWorkload` with `LlmfoundryOptions`. Output: `RecordedLayer`; the parameters are those of
`operators/shared/mpt_tensors.py`.
Start: `implementation.record`.

`implementation`: embedding, blocks, norms, head, loss, ALiBi. `attention`: its Triton kernel, and flash-attn over
unpadded rows. `fp8`: linears of TransformerEngine 0.10 (`fc_type: te`). Its precision, prefetches and refusals around
FSDP: `frameworks/common/llmfoundry.py`.
"""
