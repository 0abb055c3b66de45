"""Finds a framework's adapter by its name, and says why a name is none."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from simcore.errors import InputError, Problem
from simcore.frameworks.adapter import AtRest, FrameworkAdapter
from simcore.inputs.scenario import Scenario
from simcore.placement.framework import Framework
from simcore.program.hooks import HooksFactory

__all__ = ["asked_adapter", "at_rest_of", "dispatchers_of", "framework_adapter", "framework_file", "hooks_of",
           "known_frameworks", "named_adapter"]

_FOLDERS: Final = {
    "automodel": "automodel", "ddp": "ddp", "fsdp1": "fsdp1", "fsdp2": "fsdp2",
    "megatron": "megatron", "megatron_fsdp": "megatron_fsdp",
    "zero0": "deepspeed", "zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed",
}  # fmt: skip
"""The folder of each framework, whose `adapter` module is loaded when a scenario asks for it."""
_ZERO_STAGE: Final = re.compile(r"(?:deepspeed|zero)[-_ ]?(?:stage[-_ ]?)?(\d+)", re.IGNORECASE)


def known_frameworks() -> tuple[str, ...]:
    """Returns the names that a scenario may give as its framework, in alphabetical order."""
    return tuple(sorted(_FOLDERS))


@lru_cache
def framework_adapter(name: str) -> FrameworkAdapter:
    """Returns the adapter (table, hooks, settings) of the framework `name`; KeyError for an unknown one."""
    adapters: dict[str, FrameworkAdapter] = importlib.import_module(
        f"simcore.frameworks.{_FOLDERS[name]}.adapter").ADAPTERS
    return adapters[name]


def has_option(name: str, option: str) -> bool:
    """Returns True if the framework `name` has an option; False for an unknown one."""
    return name in _FOLDERS and framework_adapter(name).has_option(option)


def dispatchers_of(name: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the dispatchers of the framework `name`, as `FrameworkAdapter.dispatchers`; none for an unknown one."""
    return framework_adapter(name).dispatchers if name in _FOLDERS else {}


def framework_file(name: str) -> str:
    """Returns the path of the file with a framework's table, from the root of the repository."""
    return f"simcore/frameworks/{_FOLDERS[name]}/table.py"


def hooks_of(framework: Framework) -> HooksFactory:
    """Returns the factory of the hooks that write a step's memory events under a table's framework."""
    return framework_adapter(framework.name).hooks


def at_rest_of(framework: Framework) -> AtRest:
    """Returns the three functions that count a rank's bytes at rest under the framework that a table belongs to."""
    return framework_adapter(framework.name).at_rest


def asked_adapter(scenario: Scenario) -> FrameworkAdapter:
    """Returns the adapter of the framework that a scenario names.

    InputError for an unknown framework, or a version that the framework does not have.
    """
    adapter = named_adapter(scenario.framework, scenario.where("framework"))
    if scenario.framework_version not in ("auto", *adapter.versions):
        message = f"expected one of {', '.join(adapter.versions)}, got {scenario.framework_version!r}"
        raise InputError(Problem(scenario.where("framework_version"), message))
    return adapter


def named_adapter(name: str, where: str = "") -> FrameworkAdapter:
    """Returns the adapter of the framework that a user names; InputError, with place `where`, for an unknown one."""
    if name not in _FOLDERS:
        raise InputError(Problem(where, *_why_unknown(name)))
    return framework_adapter(name)


def _why_unknown(name: str) -> tuple[str, ...]:
    """The message, and the rule if the name means a stage of ZeRO."""
    found = _ZERO_STAGE.fullmatch(name)
    if found is None:
        close = difflib.get_close_matches(name, known_frameworks(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return (f"unknown framework {name!r}: this version has {', '.join(known_frameworks())}{hint}",)
    stage, rule = int(found[1]), "deepspeed 0.19.6 runtime/zero/config.py ZeroStageEnum: 0 to 3"
    if stage > 3:
        return (f"there is no stage {stage} of ZeRO: stage 3 cuts parameters too, and nothing is left to cut (what "
                "stays lies on the host with training.offload)", rule)
    return f"stage {stage} of ZeRO is framework zero{stage}", rule
