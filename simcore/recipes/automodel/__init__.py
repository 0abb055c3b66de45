"""Recipes of NeMo Automodel: one YAML file for `automodel FILE --nproc-per-node N`.

Input: the file. Output: a scenario of framework `automodel`. Start: `recipe.FORMAT`.

`recipe`: recognises and reads a file, block by block. `cluster`: GPUs that it asks for. `model`: the model and its
kernels. `config_fields`: fields of its configuration, and its format. `distributed`: degrees, FSDP2, pipeline.
`batches`: batch sizes and lengths. `peft`: adapters and packed bases. `optimizer`: optimizer and loss. `float8`,
`te_fp8`: products in 8 bits. `without_effect`: keys that no answer depends on. `written`: recipes of scenarios.

Facts about keys are those of NVIDIA-NeMo/Automodel 36044ad3 (main, 2026-08-22); what is simulated is release 0.7.0.
`_target_` values are compared as text and never imported.
"""
