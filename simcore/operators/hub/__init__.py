"""Modelling code from a checkpoint's repository on the Hugging Face Hub (`trust_remote_code=True`).

Input: `LayerKind`, `LayerWorkload` with `HfOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`.

Today one such file: `modeling_nemotron_h.py` of Nemotron-3-Nano, loaded by transformers 4. It runs the layers of
`operators/hf` with its own mask, attention and loop over experts, which are in `operators/hf/remote_code.py`; here the
matrices of each expert are modules of their own. `frameworks/common/expert_modules.py` says what is served.
"""
