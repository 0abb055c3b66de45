"""Options of `accelerate launch` as keys of the YAML that `accelerate config` writes, before which they go.

Source: accelerate 1.15.0 `commands/launch.py` _validate_launch_command: the file fills what the command leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import parse_value
from simcore.recipes.launch.arguments import Override
from simcore.recipes.shell.pieces import Word

__all__ = ["asks_for_more", "beyond_ranks", "expect_known", "options_of"]

_KINDS: Final = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM",
                 "multi_gpu": "MULTI_GPU", "tpu": "XLA", "cpu": "MULTI_CPU"}
"""Values of `distributed_type` by the switches that ask for them."""
_DEEPSPEED: Final = frozenset({
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names"})
_BLOCKS: Final = {"fsdp_": "fsdp_config", "parallelism_config_": "parallelism_config", "dynamo_": "dynamo_config",
                  "megatron_lm_": "megatron_lm_config", "fp8_": "fp8_config"}
_NOT_KEYS: Final = frozenset({"config_file", "quiet", "q", "use_parallelism_config", "tee", "t", "log_dir", "role",
                              "rdzv_conf", "max_restarts", "monitor_interval", "num_cpu_threads_per_process", "module",
                              "no_python"})
"""Options that no YAML has, on which nothing depends."""
_OF_RANKS: Final = frozenset({"num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
                              "gpu_ids", "same_network", "rdzv_backend", "enable_cpu_affinity", "debug",
                              "main_training_function", "distributed_type", "env", "mpirun_hostfile"})
"""Keys that say which ranks there are, and nothing of what they do."""
_MEETING: Final = frozenset({"machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "gpu_ids", "env",
                             "main_training_function", "enable_cpu_affinity", "debug", "same_network"})
"""Keys that say how ranks find each other: their values need not be known."""


def options_of(words: Sequence[Word], path: str) -> tuple[Override, ...]:
    """Options as keys of the YAML, in order, with their places."""
    found: list[Override] = []
    number = 0
    while number < len(words):
        word = words[number]
        name, has_value, inner = word.text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        number += 1
        value = Word(inner, word.line, word.unknown) if has_value else None
        if value is None and number < len(words) and not words[number].text.startswith("-"):
            value, number = words[number], number + 1
        where = f"{path}:{word.line}"
        if key in _KINDS:
            found.append(Override(("distributed_type",), _KINDS[key], where))
        elif key not in _NOT_KEYS:
            found.append(_override(key, value, where))
    return tuple(found)


def expect_known(options: Sequence[Override]) -> None:
    """Raises InputError for values that are not known, but for those that say how ranks find each other.

    And for a format that accelerate 1.15.0 does not take (`utils/launch.py` PrecisionType).
    """
    problems = [Problem(one.where, one.unknown) for one in options if one.unknown and one.path[0] not in _MEETING]
    problems += [Problem(one.where, f"mixed_precision: expected no, fp16, bf16 or fp8, got {one.value!r}")
                 for one in options if one.path == ("mixed_precision",) and not one.unknown
                 and str(one.value).lower() not in ("no", "false", "fp16", "bf16", "fp8")]
    if problems:
        raise InputError(problems)


def asks_for_more(options: Sequence[Override]) -> bool:
    """True if the options say more than which ranks there are."""
    return bool(beyond_ranks(options))


def beyond_ranks(options: Sequence[Override]) -> tuple[Override, ...]:
    """Options that say more than which ranks there are."""
    return tuple(one for one in options
                 if one.path[0] not in _OF_RANKS or one.value in ("FSDP", "DEEPSPEED", "MEGATRON_LM"))


def _override(key: str, value: Word | None, where: str) -> Override:
    if key in _DEEPSPEED:
        at: tuple[str, ...] = ("deepspeed_config", key)
    else:
        at = next(((block, key) for prefix, block in _BLOCKS.items() if key.startswith(prefix)), (key,))
    if value is not None and value.unknown:
        told = f"--{key} {value.text}: not known from the script alone: {value.unknown}"
        return Override(at, value.text, where, told)
    return Override(at, True if value is None else parse_value(value.text, where), where)
