"""Mixtures of experts as transformers 4.57.1 builds them: each expert is a module of three linears.

Input: `LayerKind`, `LayerWorkload` with `HfOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`.

Served are Qwen3-MoE and Mixtral. All but the experts, their router and the loop over them is that of `operators/hf`;
the loop is in `operators/hf/remote_code.py`. `frameworks/common/expert_modules.py` says what is served.
"""
