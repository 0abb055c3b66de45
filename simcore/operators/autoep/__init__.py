"""Models of transformers 5.23 whose experts are DeepSpeed's: AutoEP (`module_inject/auto_ep_layer.py`).

Input: `LayerKind`, `LayerWorkload` with `HfOptions`. Output: `RecordedLayer`, `TensorSpec`s.
Start: `implementation.record`.

DeepSpeed takes each block of experts out of a model and puts its own there, of torchtitan's router and experts:
`experts.py`. All other parts of a layer are those of `operators/hf`. Which models and layouts
DeepSpeed takes, and how it cuts the experts: `frameworks/deepspeed/experts/`.
"""
