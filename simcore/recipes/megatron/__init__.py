"""Arguments of Megatron-LM: shell scripts, argument lists, and the model_config.yaml of its functional tests.

Input: the file. Output: a scenario of framework `megatron` or `megatron_fsdp`. Start: `recipe.FORMAT`.

`recipe`: recognises a file, finds the command, and reads its arguments part by part. `arguments`: the table of all
arguments, and words as values. `fields`: fields of Megatron's configurations, whatever their form, and keys written
from them. `model`, `hybrid`, `patterns`, `vocabulary`: the model by its sizes. `layout`: degrees, stages, batches.
`step`: formats, optimizer, recomputation, loss. `options`: framework options. `launch`, `environment`, `determinism`:
the command around the arguments. `refused`, `without_effect`: arguments that no scenario can say, or without
effect.

Facts are those of Megatron-LM d98e8a64 (main, 2026-08-22) and of core 0.16.1.
"""
