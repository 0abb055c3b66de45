"""Recipes that other tools train from, read as scenarios: nothing is executed, and no key is dropped in silence.

Input: the files of a recipe, and answers to what it leaves open. Output: `Imported`: a scenario, the origin of each of
its keys, and what became of every key of the recipe. Start: `importing.import_recipe`.

`importing`: files to `Imported`, also on the fly where a scenario is expected. `registry`, `format`: the formats, each
a module or folder here with a `FORMAT`. `recipe_file`, `toml_lines`: text and values of a file. `reader`: hands out
values and remembers them. `draft`: the scenario under way; a key that is handed out must be told what became of it.
`answers`: what the user says. `rows`: tables of keys. `imported`: the result. `machine`, `world`: machine and ranks.
`environment`: variables of a launch script. `references`, `reference_syntax`: `${a.b}` in values. `parents`: files that
a recipe inherits from. `text`: YAML with origins.

Formats. `automodel`: recipes of NeMo Automodel. `axolotl`: recipes of axolotl. `trl`: recipes of TRL. `alone`: files of
accelerate and DeepSpeed without a training script. `huggingface`: what the last three share. `megatron`: arguments of
Megatron-LM. `bridge`: recipes of Megatron-Bridge. `torchtitan`: its job configurations. `nemo_rl`: recipes of NeMo RL.
`verl`: scripts and YAML of verl. `shell`: reader of shell scripts. `launch`: launch commands beside a recipe.
"""
