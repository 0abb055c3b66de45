"""Implementations of models: what each operator of a layer allocates, saves, frees, computes and sends.

One package an implementation, because the same architecture runs differently in each code base. A module reads like
the upstream module, with its class and variable names, over tensors without values.
Input: a `LayerKind` and its `LayerWorkload` (shapes, parallel degrees, options of its own). Output: a `RecordedLayer`.
Start: `implementation.Implementation`: `record` (one layer), `tensors` (its parameters and buffers), `standing`
(buffers that all layers share). `<implementation>/implementation.py` fills it in; `registry` finds it by name.

`hf`: Hugging Face transformers, also with PEFT, bitsandbytes, Liger, Unsloth. `hf4`: its release 4, whose experts are
modules. `autoep`: with DeepSpeed's experts. `hub`: modelling code from a checkpoint's repository. `automodel`: NeMo
Automodel. `megatron`: Megatron-Core with Transformer Engine. `torchtitan`, `kempnerforge`, `llmfoundry`: those
trainers' own models. `shared`: operators of ATen and DTensor, and what several of them call. How parameters are
gathered and gradients reduced around a layer is in `frameworks/`, not here.
"""
