"""Answers of the user to what recipes leave open: number of GPUs, length of sequences, machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.recipes.launch.arguments import Override

__all__ = ["Answer", "Answers"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A value and the place that gives it: an option such as `--gpus 8`, or the line of a launch command."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers that are known before a recipe is read.

    `gpus`: number of GPUs; `seq_len`: tokens of a sequence; `topology`: name or file of the machine. `settings`: keys
    of the scenario that `--set` gives: what they say is not asked. `launcher`: kind of the launch command that stands
    beside the recipe, such as `torchrun`; "" without one. `program`: file or module that it starts, or the first word
    of a trainer's command, such as `dpo`. `variables`: of the environment of a script. `exported`:
    value and place of variables of that script; `options`: of accelerate in it, as keys of its YAML.
    """

    gpus: Answer | None = None
    seq_len: Answer | None = None
    topology: Answer | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    launcher: str = ""
    program: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    exported: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    options: tuple[Override, ...] = ()

    @classmethod
    def of_options(cls, gpus: int | None = None, seq_len: int | None = None, topology: str = "",
                   settings: Mapping[str, Any] | None = None, variables: Mapping[str, str] | None = None) -> Answers:
        """Answers of the command line's options `--gpus`, `--seq-len`, `--topology`, `--set` and `--set env.NAME`."""
        return cls(None if gpus is None else Answer(gpus, f"--gpus {gpus}"),
                   None if seq_len is None else Answer(seq_len, f"--seq-len {seq_len}"),
                   Answer(topology, f"--topology {topology}") if topology else None, settings or {},
                   variables=variables or {})
