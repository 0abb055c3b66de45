"""Launchers in the words of a command: which there are, their options, and the program that the last one starts.

Options that take no value are listed, of each launcher: its `--help` of torch 2.13, accelerate 1.14, DeepSpeed 0.19,
Slurm 24, Open MPI 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.recipes.shell.pieces import Word

__all__ = ["NEMO_RL", "Starter", "prepares", "starters_of"]

_BY_NAME: Final[Mapping[str, str]] = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate", "accelerate-launch": "accelerate", "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed", "automodel": "automodel", "axolotl": "axolotl",
    "llamafactory-cli": "llamafactory", "lmf": "llamafactory", "trl": "trl",
    "axolotl.cli.train": "axolotl", "srun": "srun", "mpirun": "mpirun", "mpiexec": "mpirun", "orterun": "mpirun"}
_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "torchrun": frozenset({"--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env",
                           "--use_env", "--signals-to-handle"}),
    "accelerate": frozenset({"--multi_gpu", "--cpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm",
                             "--quiet", "-q", "--debug", "--no_python", "--use_parallelism_config",
                             "--enable_cpu_affinity", "--use_xpu", "--ipex", "--downcast_bf16", "--same_network",
                             "--dynamo_use_fullgraph", "--dynamo_use_dynamic", "--dynamo_use_regional_compilation",
                             "--fp8_use_autocast_during_eval", "--tpu_cluster", "--no_tpu_cluster"}),
    "deepspeed": frozenset({"--no_python", "--no_local_rank", "--force_multi", "--save_pid", "--no_ssh",
                            "--bind_cores_to_rank", "--no_ssh_check"}),
    "srun": frozenset({"--label", "-l", "--unbuffered", "-u", "--exclusive", "--overlap", "--kill-on-bad-exit", "-v",
                       "--exact", "--pty", "--wait-all-nodes", "--container-mount-home", "--no-container-mount-home",
                       "--container-writable", "--no-kill", "-K", "-O", "--overcommit", "--propagate", "-Q",
                       "--quiet"}),
    "mpirun": frozenset({"--allow-run-as-root", "--oversubscribe", "--tag-output", "--display-map", "-oversubscribe",
                         "--report-bindings", "--nooversubscribe", "--display-allocation"}),
}
NEMO_RL: Final = "nemo_rl"
"""Kind of NeMo RL's programs, which start their processes themselves, by Ray."""
_PROGRAM: Final = re.compile(r"run_(?:sft|dpo|grpo)\w*\.py")
_PREPARES: Final = re.compile(
    r"preprocess|pre_process|tokeni[sz]e|prepare_|_prepare|download|convert|conversion|export|merge_|_merge|consolidate|"
    r"quantize|build_index|inference|generate|serve|evaluate|eval_|lm_eval|benchmark_data|shard_data", re.IGNORECASE)
_TRAINS: Final = re.compile(r"train|sft|dpo|grpo|finetun|fine_tun|tune", re.IGNORECASE)
_TWO_VALUES: Final = frozenset({"-mca", "--mca", "-gmca", "--gmca"})
_MODULE: Final = frozenset({"-m", "--module"})
_NAMES_MODEL: Final = "--model_name_or_path"
_PYTHON: Final = re.compile(r"python[0-9.]*")
_WITHIN: Final = frozenset({"env", "time", "numactl", "nsys", "uv", "run", "poetry", "exec", "bash"})
_NO_TRAINING: Final = frozenset({"echo", "printf", "pip", "pip3", "conda", "export", "which", "cd", "apt", "apt-get",
                                 "source", "module", "scontrol", "mkdir", "cat", "hf", "huggingface-cli"})


@dataclass(frozen=True, slots=True)
class Starter:
    """A launcher of a command: `kind`, its word, and its own options. `rest`: what it starts, with its arguments."""

    kind: str
    word: Word
    options: tuple[Word, ...]
    rest: tuple[Word, ...]


def prepares(starter: Starter) -> str:
    """Name of a program that by it prepares data, or converts or tries a model; "" for any other."""
    program = next((word.text for number, word in enumerate(starter.rest) if word.text.endswith(".py") or (
        number and starter.rest[number - 1].text in _MODULE)), "")
    name = program.removesuffix(".py").rpartition("/")[2].rpartition(".")[2]
    return program if _PREPARES.search(name) and not _TRAINS.search(name) else ""


def starters_of(words: Sequence[Word]) -> tuple[Starter, ...]:
    """Launchers of a command from the outside in; () for one that starts no training by one of them."""
    if not words or words[0].text in _NO_TRAINING or any(word.text == "install" for word in words[:4]):
        return ()
    found: list[Starter] = []
    rest: Sequence[Word] = words
    while (at := _first(rest)) is not None:
        name = _base(rest[at])
        kind = NEMO_RL if _PROGRAM.fullmatch(name) else _BY_NAME.get(name, "accelerate")
        behind = rest[at + 1:] if _base(rest[at]) != "accelerate" else rest[at + 2:]
        end = _end_of_options(behind, kind)
        found.append(Starter(kind, rest[at], tuple(behind[:end]), tuple(behind[end:])))
        if kind not in ("srun", "mpirun"):
            break
        rest = behind[end:]
    return tuple(found) or _alone(words)


def _alone(words: Sequence[Word]) -> tuple[Starter, ...]:
    """Python as the launcher of one process: a program of transformers' Trainer without another one around it."""
    at = next((number for number, word in enumerate(words) if _PYTHON.fullmatch(_base(word))), None)
    if at is None or not any(word.text.partition("=")[0] == _NAMES_MODEL for word in words[at:]):
        return ()
    before = words[:at]
    if any(_base(word) not in _WITHIN and "=" not in word.text and not word.text.startswith("-") for word in before):
        return ()
    return (Starter("python", words[at], (), tuple(words[at + 1:])),)


def _first(words: Sequence[Word]) -> int | None:
    """Position of a launcher in command position: behind Python, wrappers and their options, but no program."""
    for number, word in enumerate(words):
        name = _base(word)
        follows = words[number + 1].text if number + 1 < len(words) else ""
        if name in _BY_NAME or _PROGRAM.fullmatch(name) or (name == "accelerate" and follows == "launch"):
            return number
        if name.endswith((".py", ".sh")) or (number and words[number - 1].text in _MODULE):
            return None
        is_part = name in _WITHIN or _PYTHON.fullmatch(name) or name.startswith("-") or "=" in name
        if not is_part and not (number and words[number - 1].text.startswith("-")) and not word.unknown:
            return None
    return None


def _base(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _end_of_options(words: Sequence[Word], kind: str) -> int:
    """Number of words that are the launcher's own: none where all are one list, and of NeMo RL."""
    if kind not in _FLAGS:
        return 0
    number = 0
    while number < len(words):
        text = words[number].text
        if text in _MODULE and kind in ("torchrun", "accelerate", "deepspeed"):
            return number
        if not text.startswith("-"):
            return number
        is_short = re.fullmatch(r"-[A-Za-z][0-9]+", text) is not None
        plain = f"--{text[2:].replace('-', '_')}" if kind == "accelerate" and text.startswith("--") else text
        takes_none = plain in _FLAGS[kind] or "=" in text or is_short
        number += 1 if takes_none else 3 if text in _TWO_VALUES else 2
    return number
