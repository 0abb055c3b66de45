"""NeMo Automodel 0.7.0: the models that it implements itself, operator by operator.

Input: `LayerKind`, `LayerWorkload` with `AutomodelOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`, `tensors.tensors`.

`env`: what every operator needs. `layers`: norms, linears with adapters, attention, MLP. `mamba`: Mamba-2.
`dense`: Llama, Qwen2, Qwen3, Qwen3-MoE. `latent`: latent attention of DeepSeek-V3. `sparse`: the families with such
layers. `moe`: the mixture of experts; `router`; `dispatch_deepep` (also HybridEP), `dispatch_local` (none): its
dispatchers; `experts`: grouped products. `head`: output projection and losses. `predictions`: multi-token prediction.
`lora`: the Triton LoRA function. `python`: host time of Python code around its kernels. Models that Automodel takes
from transformers run with `operators/hf`. FSDP2 units, refusals and the LoRA matcher: `frameworks/automodel`.
"""
