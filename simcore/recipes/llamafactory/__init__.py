"""Recipes of LLaMA-Factory: the YAML of `llamafactory-cli train`, which has arguments of transformers' Trainer too.

Input: the file, or a script with such arguments, and the YAML of `accelerate launch` or DeepSpeed's JSON. Output:
`Imported`. Start: `recipe.FORMAT`. Facts are those of hiyouga/LLaMA-Factory ff6d4d12 (2026-08-18), paths below
`src/llamafactory`, and of the newest releases that it allows: transformers 5.8.0, accelerate 1.11.0, PEFT 0.18.1.

`recipe`: the format, block by block. `kind`: recipes that do something else than is simulated. `model`: model,
attention, kernels. `method`: what is trained, adapters and packed bases. `formats`: what is stored and computed in
which format. `lengths`: rows and microbatch. `checkpointing`: recomputed layers. `environment`: variables that its
launcher sets. `without_effect`: keys that change nothing in a step. `rewrite`: recipes of `USE_V1`, which are another
program's.
"""
