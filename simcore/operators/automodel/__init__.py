"""NeMo Automodel 0.7.0: the models that it implements itself, operator by operator.

Input: `LayerKind`, `LayerWorkload`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`, `tensors.tensors`.

`layers`: norms, linears with adapters, attention, MLP, Mamba-2 of Nemotron-H. `dense`: Llama, Qwen2, Qwen3. `latent`:
latent attention of DeepSeek-V3. `qwen3_moe`: its attention. `moe`: router, token dispatch (DeepEP, HybridEP, or none),
grouped experts, shared expert. `head`: output projection and losses. `lora`: the Triton LoRA function. `python`: host
time of Python code around its kernels. Models that Automodel takes from transformers run with `operators/hf`. FSDP2
units, refusals and the LoRA matcher: `frameworks/automodel`.
"""
