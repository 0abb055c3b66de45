"""Adapters of linear layers as NeMo Automodel 0.7.0 runs them (`components/_peft/lora.py`).

Input: a `Tape`, a layer's workload, a linear's weight and its input. Output: the linear's output, on the tape.
Start: `lora`.

`lora`: of a weight that a rank has whole: one function of autograd, products, DoRA; its own layers and those of
transformers have it alike. `split`: of a weight that tensor parallelism cuts, as a DTensor.

Which modules have adapters is the framework's (`frameworks/automodel/lora.py`). Adapters of routed experts are in
`operators/automodel/experts.py`, those of TransformerEngine's linears in `operators/automodel/layers.py`.

Measured with `tests/truth/probe_automodel_adapters.py` and `probe_automodel_tp.py`.
"""
