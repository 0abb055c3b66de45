"""Recipes of TRL: the YAML of `trl sft --config`, which has the arguments of transformers' Trainer too; DPO, rewards.

Input: the file, or a script with such arguments, and beside it the YAML of `accelerate launch`, DeepSpeed's JSON,
PEFT's `adapter_config.json`. Output: `Imported`. Start: `recipe.FORMAT`. Facts are those of TRL 1.16.0, transformers
5.23.0, PEFT 0.21.2.

`recipe`: the format, block by block. `model`: model, attention, loss. `formats`: what is stored and computed in which
format. `adapters`: LoRA and packed bases. `batches`: lengths and microbatch. `checkpointing`: recomputed layers.
`stages`: which training a recipe is of; `preference`: pairs, of `trl dpo` and `trl reward`. `without_effect`: keys that
change nothing in a step. What the Trainer decides is in `huggingface.trainer`. `written`: recipes of scenarios.
"""
