"""Hugging Face transformers 5.23 on eager PyTorch 2.13: tensors and layers, operator by operator.

Input: `LayerKind`, `LayerWorkload` with `HfOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`, `tensors.tensors`.

`embedding`: also tables that all layers read. `layers`: norm, linear, attention (SDPA, flash-attn), MLP of Llama-like
families. `families`: one row a family that differs, whose modules are `gpt_oss`, `decoders` (Phi-3, OLMo 2), `hybrid`
(GraniteMoeHybrid), `nemotron` (Mamba-2), and the rooms `llama4`, `latent` (DeepSeek, Mistral 4), `gemma4`. `moe`:
routers and experts; `across_ranks`: those that ranks share. `head`, `losses`; `chunked`: torchtune's loss in chunks.
`autocast`: casts of mixed precision.
Libraries on top: `liger` (Liger-Kernel 0.7.0), `unsloth`, `peft` (adapters of linears and experts), `packed` (linears
in 4 bits of bitsandbytes or torchao, and in LLM.int8()). `remote_code`: what Nemotron's own repository and transformers
4 compute differently, for `operators/hub` and `operators/hf4`.
"""
