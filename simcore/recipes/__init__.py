"""Recipes that other tools train from, read as scenarios and written from them; no key is dropped in silence.

Input: files of a recipe, and answers to what it leaves open. Output: `Imported`: a scenario, the origin of its keys,
what became of the recipe's. Start: `importing.import_recipe`; back: `conversion.converting.convert`.

`registry`, `format`: the formats, each a module or folder here with a `FORMAT`. `recipe_file`, `toml_lines`: text and
values of a file. `reader`: hands out values and remembers them. `draft`: the scenario under way; a key that is handed
out must be told what became of it. `answers`: what the user says. `rows`: tables of keys. `machine`, `world`: machine
and ranks. `environment`: variables of a launch. `text`: YAML with origins. Back: `recipe_writer`, `outline`: the recipe
under way; `settled`: a scenario with its framework's choices; `conversion`: written, read back, compared.

`automodel`, `axolotl`, `trl`, `megatron`, `bridge`, `torchtitan`: recipes of these. `alone`: files of accelerate and
DeepSpeed without a training script; `huggingface`: what they share with the first. `shell`: reader of shell scripts.
`launch`: launch commands beside a recipe.
"""
