"""torchtitan 0.2.2 on PyTorch 2.13: Llama 3 and 4, Qwen3, DeepSeek V3 and GPT-OSS, operator by operator.

Input: `LayerKind`, `LayerWorkload` with `TorchtitanOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`, `tensors.tensors`.

`attention`: grouped-query attention with torchtitan's rotary tables. `latent`: latent attention. `moe`: router and
grouped experts on one rank. `gpt_oss`: its attention and experts. `loss`: cross entropy, also over a vocabulary cut by
tensor parallelism. `compiled`: blocks under `torch.compile` (what AOTAutograd saves), also with torchao's fp8;
`compiled_parts`: parts of layers with experts; `compiled_loss`. Its tensor parallel plan, activation checkpointing and
options: `frameworks/fsdp2/torchtitan.py`.
"""
