"""Job configurations of torchtitan, TOML or saved as JSON, read as scenarios of its layers on FSDP2.

Input: the recipe file. Output: `Imported`. Start: `recipe.FORMAT`. Keys are those of torchtitan 0.2.2
(`config/job_config.py`), the last release with TOML and the one whose layers are simulated, and older spellings of
release 0.1.0; the configuration of later releases is refused by name.

`recipe`: recognises a file and reads it block by block. `flavors`: the models by name and flavor. `model`: which of
them, and products in 8 bits. `parallelism`: mesh, FSDP, pipeline stages. `step`: batches, formats, checkpointing,
compilation, optimizer. `without_effect`: keys that change nothing that is simulated. `written`: configurations of
scenarios.
"""
