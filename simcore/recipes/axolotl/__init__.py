"""Recipes of axolotl: a flat YAML file, of which transformers, PEFT, accelerate and bitsandbytes get their parts.

Input: the file, and the number of GPUs, which it never says. Output: `Imported`. Start: `recipe.FORMAT`. Sources are of
axolotl 067b021c (2026-07-24), `src/axolotl/`, and of the versions of the libraries that the simulation has.

`recipe`: the format, block by block. `ranks`, `environment`: workers of Ray, variables of the command. `model`: model,
formats, attention, kernels. `sharding`: what the GPUs split (DDP, FSDP 1 and 2). `batches`: batch sizes and lengths.
`checkpointing`: what is recomputed, and what waits on the host. `adapters`: LoRA and packed bases. `optimizer`: its
states and its code. `unfrozen`: what trains by pattern. `refused`, `without_effect`: keys that are not simulated, or
change nothing in a step. `written`: recipes of scenarios.
"""
