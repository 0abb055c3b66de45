"""Recipes of `trl grpo`: what GRPO has beside the arguments that all of TRL's trainers share.

Input: the reader of a recipe, and a draft with model, sharding and microbatch. Output: the blocks `rl` and
`generation` of the draft. Start: `recipe.read_grpo`, which `trl/recipe.py` calls. Facts are those of TRL 1.16.0.

`recipe`: recognition, rewards, the reference model. `lengths`: tokens of prompts and answers. `batches`: how many
sequences are generated at once. `generation`: vLLM, or the policy itself. `without_effect`: numbers.
"""
