"""Recipes of NeMo RL: a YAML file of `examples/configs` with its chain of `defaults`.

Input: the file, and parents that the user names beside it. Output: a scenario of the workload `train` (SFT), `dpo` or
`grpo`, under `automodel` (DTensor workers) or `megatron`. Start: `recipe.FORMAT`.

`recipe`: recognises a file, reads its chain, and goes through it block by block. `policy`: model, batches, lengths.
`cluster`: GPUs that train and that generate. `dtensor`, `megatron`: the two kinds of workers; `predictions`: tokens
that Megatron's predict further. `generation`: the engine. `step`: what the algorithm does in a step. `keys/`: what
several blocks spell alike, and keys on which no answer depends.

Facts about keys are those of NVIDIA-NeMo/RL 7ea279ab (main, 2026-08-22); files are named below `nemo_rl/`.
"""
