"""Command `trl sft` and its like: options of accelerate among arguments of the training.

Rule: TRL `cli/commands/training.py` and `cli/accelerate_config.py`: what the script's parser does not know goes to
`accelerate launch`; `--accelerate_config NAME` is `--config_file` of a file, or of one of TRL's own by its name.
"""

from __future__ import annotations

import re
from typing import Final

from simcore.recipes.launch.starters import Starter
from simcore.recipes.shell.pieces import Word

__all__ = ["COMMANDS", "inner_accelerate", "is_of_launcher", "launcher_file"]

COMMANDS: Final = ("sft", "dpo", "grpo", "kto", "reward", "rloo")
"""Trainings of the command."""
_CONFIG: Final = "--accelerate_config"
_VALUES: Final = re.compile(
    r"--(?:accelerate_config|config_file|num_processes|num_machines|machine_rank|main_process_ip|main_process_port|"
    r"mixed_precision|gpu_ids|rdzv_backend|rdzv_conf|zero_stage|deepspeed_config_file|offload_\w+_device|"
    r"fsdp_(?!config$)\w+|dynamo_\w+|parallelism_config_\w+)")
_FLAGS: Final = re.compile(r"--(?:multi_gpu|use_fsdp|use_deepspeed|use_megatron_lm|use_parallelism_config|cpu|debug)")


def is_of_launcher(name: str) -> bool:
    """True for the name of an option that is accelerate's."""
    return bool(_VALUES.fullmatch(f"--{name}") or _FLAGS.fullmatch(f"--{name}"))


def inner_accelerate(starter: Starter, _path: str) -> tuple[Starter, tuple[Word, ...]]:
    """Accelerate as the command starts it, and the arguments of the training."""
    own, rest, number = list[Word](), list[Word](), 0
    while number < len(starter.rest):
        name, has_value, _ = starter.rest[number].text.partition("=")
        taken = 2 if _VALUES.fullmatch(name) and not has_value else 1
        is_own = _VALUES.fullmatch(name) or _FLAGS.fullmatch(name)
        (own if is_own else rest).extend(starter.rest[number:number + taken])
        number += taken
    return Starter("accelerate", starter.word, tuple(_named(own)), ()), tuple(rest)


def _named(words: list[Word]) -> list[Word]:
    """Options with the file that `--accelerate_config` names, TRL's own by its name with its ending."""
    found: list[Word] = []
    for number, word in enumerate(words):
        name, has_value, value = word.text.partition("=")
        if name == _CONFIG:
            text = f"--config_file={launcher_file(value)}" if has_value else "--config_file"
            found.append(Word(text, word.line, word.unknown))
        elif number and words[number - 1].text == _CONFIG:
            found.append(Word(launcher_file(word.text), word.line, word.unknown))
        else:
            found.append(word)
    return found


def launcher_file(name: str) -> str:
    """File that `accelerate_config` names: TRL's own by its name with its ending."""
    return name if name.endswith((".yaml", ".yml")) or "/" in name else f"{name}.yaml"
