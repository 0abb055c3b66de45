"""Recipes of verl: a script that starts one of its trainers with keys of hydra (`a.b=c`), or a YAML file of such keys.

Input: the script, and a YAML file that its `--config-name` means, or the YAML file alone. Output: a scenario.
Start: `recipe.FORMAT`.

`command`: the command in a script, its trainer and its keys. `recipe`: recognises files, and reads what the trainer
takes. `defaults`: keys that have a value without the command. `sft`: the supervised trainer over FSDP. `rl`: the
trainer of reinforcement learning, whose actor is read by `actor` and `sharding` (FSDP) or `megatron`.

Facts about keys and defaults are those of volcengine/verl b178a3cd (main, 2026-01-29).
"""
