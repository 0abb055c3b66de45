"""Recipes that other tools train from, read as scenarios and written from them; no key is dropped in silence.

Input: files of a recipe, and answers to what it leaves open. Output: `Imported`: a scenario, the origin of each of its
keys, what became of the recipe's. Start: `importing.import_recipe`; back: `conversion.converting.convert`.

`registry`, `format`: the formats, each a module or folder here with a `FORMAT`. `recipe_file`, `toml_lines`: text and
values of a file. `reader`: hands out values and remembers them. `draft`: the scenario under way; a key that is handed
out must be told what became of it. `answers`: what the user says. `rows`: tables of keys. `machine`, `world`: machine
and ranks. `environment`: variables of a launch. `model_file`: a model's `config.json`. `data_sets`: lengths of known
data sets. `inheritance`: files that a recipe inherits from, and `${a.b}` in values. `text`: YAML with origins. Back:
`recipe_writer`, `outline`: the recipe under way; `settled`: a scenario with its framework's choices; `conversion`:
written, read back, compared.

`automodel`, `axolotl`, `llamafactory`, `trl`, `megatron`, `bridge`, `torchtitan`, `nemo_rl`, `verl`: recipes of these.
`alone`: files of accelerate and DeepSpeed without a training script, and `config.json`; `huggingface`: what they share.
`shell`: reader of shell scripts. `launch`: launch commands beside a recipe.
"""
