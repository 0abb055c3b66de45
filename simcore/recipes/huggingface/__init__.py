"""Shared parts of recipes around Hugging Face's libraries: FSDP, DeepSpeed, accelerate, optimizers by their names.

Input: a `Reader` of a file, and the draft. Output: keys of the draft, and `Shards`: what a rank has of the model.
Start: `trainer.read_sharding`, `accelerate.read_launch`, `deepspeed.read_deepspeed`, `fsdp.read_plugin`.

`shards`: which shards a rank has. `fsdp`: options of accelerate's FSDP plugin. `deepspeed`: DeepSpeed's JSON.
`accelerate`: the YAML of `accelerate launch`. `optimizers`: transformers' names of optimizers. `modules`: modules that
get adapters. `companions`: which of the files beside a recipe is what. `named_model`: the model that a key names.
`config_fields`: fields of its configuration. `experts`: its mixtures of experts. `attention`: the kernel that
transformers takes. `script`: a launch script in place of a recipe. `trainer`: arguments of transformers' Trainer.
`tf32`: the one of fp32 products. `without_effect`: those that change nothing. `written`: the same parts of recipes that
are written.

Facts are those of accelerate 1.15.0, transformers 5.23.0 and DeepSpeed 0.19.6.
"""
