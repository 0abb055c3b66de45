"""Recipes of Megatron-Bridge: by name with overrides, and the `run_config.yaml` that a run writes.

Input: a launch script or a line with a recipe's name and `key=value` overrides; or the YAML. Output: a scenario of
framework `megatron` or `megatron_fsdp`. Start: `recipe.FORMAT`.

`recipe`: recognises a file and reads it. `named`: the table of recipes (`recipes.json`, made by
`tests/truth/list_bridge_recipes.py` from the sources, which are parsed and never run), and launch lines. `scaling`: the
batch of a benchmark on other GPUs. `selection`: recipes by the model. `launched`, `layouts`: what launchers change
after a recipe is built. `model`, `provider`: the model by its Hugging Face name, or by the sizes of its provider.
`vocabulary`: its rows. `framework`: Megatron-Core or Megatron-FSDP. `step`, `experts`: precision, recomputation,
adapters, dispatchers. `towers`: images, and frozen parts of models that read them. `parallel`: degrees, overlap, number
of GPUs. `variables`: the environment. `rows`: keys that depend on no other; `fields.json`: names that blocks have.

Recipes are those of NVIDIA-NeMo/Megatron-Bridge 067f987d (main, 2026-08-22).
"""
