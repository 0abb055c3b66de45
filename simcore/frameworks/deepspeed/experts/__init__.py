"""Expert parallelism of transformers' models under DeepSpeed (AutoEP, 0.19.6 edaa72212 `module_inject/auto_ep*.py`).

Input: a `Job` whose implementation is `autoep`, or its `Plan`. Output: refusals, layer options, policies of experts,
parameter groups.
Start: `layers.LAYERS`.

`layers`: which models and layouts DeepSpeed takes, and what its layers read of a scenario. `groups`: parameter groups
that ZeRO-1 and 2 cut one by one. The layers themselves are in `operators/autoep`.
"""
