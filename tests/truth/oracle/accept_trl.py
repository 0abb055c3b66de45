"""Readings of a TRL recipe and the files beside it: accelerate's launcher, transformers, PEFT, DeepSpeed, TRL."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from oracle.started import started

MODULE = ["-m", "trl.scripts.sft"]


def load() -> None:
    """Imports the libraries, once for all cases."""
    for name in ("accelerate.commands.launch", "deepspeed.runtime.config", "torch.distributed.run", "trl.scripts.sft"):
        importlib.import_module(name)
    import torch
    from accelerate.utils import dataclasses
    from transformers import training_args
    from trl import ModelConfig, SFTConfig, get_peft_config  # noqa: F401 - TRL imports what is named

    training_args.is_torch_bf16_gpu_available = lambda: True  # there is no GPU here
    dataclasses.is_cuda_available = lambda: True
    torch.cuda.current_device = lambda: 0


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts that the libraries read in the files; raises what they raise, and ValueError for a key that one drops."""
    os.chdir(folder)  # the files name each other
    (found,) = started(folder / "launch.sh")
    if found[0] == "accelerate":
        return _by_accelerate(found[1:])
    ranks, arguments = _by_torchrun(found)
    return {"ranks": ranks, **_trainer(arguments, ranks)}


def _by_torchrun(found: list[str]) -> tuple[int, list[str]]:
    from torch.distributed.run import get_args_parser

    read = get_args_parser().parse_args(found[1:])
    if found[0] != "torchrun" or not read.module or read.training_script != MODULE[1]:
        raise ValueError(f"expected torchrun {' '.join(MODULE)}, got {' '.join(found)}")
    return int(str(read.nnodes).partition(":")[0]) * int(read.nproc_per_node), read.training_script_args


# ---- accelerate -----------------------------------------------------------------------------------------------------
def _by_accelerate(words: list[str]) -> dict[str, object]:
    """The launcher's settings, by its own parser and as the variables that a started rank would find."""
    from accelerate.commands import launch
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils import launch as variables

    if words[0] != "launch":
        raise ValueError(f"expected accelerate launch, got {words}")
    parser = launch.launch_command_parser()
    asked = parser.parse_args(words[1:])
    _expect_known(asked.config_file, vars(asked))
    asked, defaults, mixed = launch._validate_launch_command(asked)
    kind = defaults.distributed_type.value
    if asked.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if mixed else [])]
        asked.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = variables.prepare_deepspeed_cmd_env(asked)
    elif asked.use_fsdp or asked.multi_gpu:
        environment = variables.prepare_multi_gpu_env(asked)
    else:
        _, environment = variables.prepare_simple_launcher_cmd_env(asked)
    os.environ.update(environment)
    told: dict[str, object] = {"ranks": asked.num_processes, "launch": kind, "mixed": asked.mixed_precision}
    if asked.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        told |= {"fsdp": plugin.fsdp_version, "offload": _is_offloaded(plugin), "wraps": bool(plugin.auto_wrap_policy),
                 "reshard": str(plugin.reshard_after_forward), "orig_params": plugin.use_orig_params,
                 "sharding": str(plugin.sharding_strategy), "prefetch": str(plugin.backward_prefetch)}
    if asked.use_deepspeed:
        told |= {"zero": DeepSpeedPlugin().zero_stage}
    if asked.use_parallelism_config:
        from accelerate.parallelism_config import ParallelismConfig

        told |= {"copies": ParallelismConfig().dp_replicate_size}
    return {**told, **_trainer(asked.training_script_args, asked.num_processes)}


def _is_offloaded(plugin: Any) -> bool:
    policy = plugin.cpu_offload
    return bool(getattr(policy, "offload_params", type(policy).__name__ == "CPUOffloadPolicy"))


def _expect_known(file: str, options: dict[str, Any]) -> None:
    """ValueError for a key within a block that is none of the launcher's options: it would be dropped."""
    import yaml

    for block, prefix in (("fsdp_config", "fsdp_"), ("deepspeed_config", ""), ("parallelism_config", "")):
        for key in yaml.safe_load(Path(file).read_text(encoding="utf-8")).get(block) or {}:
            if (key if key.startswith(prefix) else f"{prefix}{key}") not in options:
                raise ValueError(f"accelerate's launcher has no {block}.{key}")


# ---- trainer --------------------------------------------------------------------------------------------------------
def _trainer(words: list[str], ranks: int) -> dict[str, object]:
    """The trainer's arguments, and what PEFT and bitsandbytes would be asked for."""
    from transformers import training_args
    from trl import get_peft_config, get_quantization_config
    from trl.scripts.sft import make_parser

    training_args.TrainingArguments.world_size = property(lambda self: ranks)
    _, training, model, _ = make_parser().parse_args_and_config(words, fail_with_unknown_args=True)
    _expect_passed(training)
    told = {"model": model.model_name_or_path, "dtype": str(model.dtype), "length": training.max_length,
            "batch": training.per_device_train_batch_size, "steps": training.gradient_accumulation_steps,
            "optimizer": training.optim.value, "bf16": training.bf16, "packing": training.packing,
            "checkpointing": training.gradient_checkpointing}
    lora = get_peft_config(model)
    if lora is not None:
        named = lora.target_modules
        targets = sorted(named) if isinstance(named, set) else named
        told |= {"rank": lora.r, "alpha": lora.lora_alpha, "targets": targets}
        quantized = get_quantization_config(model)
        told |= {"packed": str(quantized.quant_method.value)} if quantized is not None else {}
    zero = getattr(training, "hf_deepspeed_config", None) or getattr(training.deepspeed_plugin, "hf_ds_config", None)
    return told | (_zero(zero, training, model, ranks) if zero is not None else {})


def _expect_passed(training: Any) -> None:
    """ValueError for an option of `fsdp_config` that transformers does not pass on to accelerate's plugin."""
    if training.fsdp_plugin_args is None:
        return
    passed = {*training.fsdp_plugin_args, "version", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "min_num_params"}
    dropped = [key for key in training.fsdp_config if key not in passed]
    if dropped:
        raise ValueError(f"transformers passes on no fsdp_config {', '.join(dropped)}")


# ---- DeepSpeed ------------------------------------------------------------------------------------------------------
def _zero(found: Any, training: Any, model: Any, ranks: int) -> dict[str, object]:
    """DeepSpeed's own configuration class, after transformers has filled in and compared what it does."""
    from types import SimpleNamespace

    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    del model
    shaped = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))  # sizes that are auto need one
    if not hasattr(found, "trainer_config_process"):
        from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

        found = HfTrainerDeepSpeedConfig(found.config)
        found.trainer_config_process(training)
    found.trainer_config_finalize(training, shaped, 100)
    settings = json.loads(json.dumps(found.config, default=str))
    settings.pop("steps_per_print", None)
    known = {name for one, field in DeepSpeedZeroConfig.model_fields.items() for name in (one, field.alias)}
    if dropped := {*settings["zero_optimization"]} - known:
        raise ValueError(f"DeepSpeed has no zero_optimization {', '.join(dropped)}")
    batches = SimpleNamespace(get_data_parallel_world_size=lambda: ranks, get_rank=lambda: 0)
    import deepspeed.runtime.config as module

    module.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: ranks)
    read = DeepSpeedConfig(settings, mpu=batches)
    return {"zero": int(read.zero_config.stage), "zero_batch": read.train_batch_size,
            "zero_bf16": read.bfloat16_config.enabled}
