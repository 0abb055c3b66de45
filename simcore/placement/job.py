"""One scenario, ready for the engine: its graph, its mesh, and the values that `auto` stands for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.hardware.topology import Topology, load_topology
from simcore.inputs.block import shorten
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Capacity
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.placement.mesh import Mesh

__all__ = ["Defaults", "Draft", "Job", "topology_of", "value_problem"]

Defaults = tuple[tuple[str, str, str], ...]
"""(key, value, source) of what a scenario leaves to the framework, in the order in which the framework chose."""

MOST = 2**63 - 1
"""A whole number among framework options: sizes in elements and bytes, of which 64 bits are more than enough."""


def topology_of(scenario: Scenario) -> Topology:
    """Returns the topology that a scenario names: a shipped one, or a YAML file in the scenario's folder.

    With the number of nodes, of GPUs a node and the power of a GPU that the scenario sets, if it does.
    """
    given = scenario.topology
    name, nodes, gpus, power = (given, None, None, None) if isinstance(given, str) else (
        given.file, given.num_nodes, given.gpus_per_node, given.power_limit)
    if scenario.folder is not None and name.endswith((".yaml", ".yml")):
        name = str(scenario.folder / name)
    whole = load_topology(name, nodes, scenario.where("topology"))
    powered = whole if power is None else whole.limited(power, scenario.where("topology"))
    return powered if gpus is None else powered.narrowed(gpus)


@dataclass(frozen=True, eq=False)
class Job:
    """One scenario with its model graph and mesh: the argument from which a framework's table is made.

    `unmatched_targets`: LoRA targets of the scenario that match no module. `casts_parameters`: the framework uses
    parameters in another dtype than they have at rest.
    """

    scenario: Scenario
    graph: ModelGraph
    mesh: Mesh
    unmatched_targets: tuple[str, ...] = ()
    casts_parameters: bool = False

    @property
    def compute(self) -> str:
        """The dtype of forward and backward: the scenario's, or "bf16" if that is auto.

        If linears compute in 8 or 4 bits, it is the dtype of all other operators: bf16, or fp32 if the other parameters
        are fp32 where they are used.
        """
        precision = self.scenario.training.precision
        if self.narrow and precision.params == "fp32" and not self.casts_parameters:
            return "fp32"
        return "bf16" if precision.compute == "auto" or self.narrow else precision.compute

    @property
    def narrow(self) -> str:
        """The format in which linears compute, if it has 8 or 4 bits: "fp8" or "fp4"; otherwise an empty text."""
        compute = self.scenario.training.precision.compute
        return compute if compute in ("fp8", "fp4") else ""

    @cached_property
    def compute_capability(self) -> tuple[int, ...]:
        """The CUDA compute capability of the GPUs, (major, minor): (8, 0) is Ampere's A100, (9, 0) Hopper."""
        return tuple(int(part) for part in topology_of(self.scenario).device.compute_capability.split("."))

    @property
    def has_experts(self) -> bool:
        """Tells whether any layer of the model is a mixture of experts."""
        return any(isinstance(b.block, Moe) for kind in self.graph.kinds for b in kind.branches)

    def one_of(self, key: str, given: str, served: tuple[str, ...]) -> None:
        """Raises NotYet if `given`, the scenario's value of `key`, is not one of the values `served`."""
        if given not in served:
            raise self.not_yet(key, f"{given} under {self.scenario.framework} (served: {', '.join(served)})")

    def refuse_given(self, keys: Mapping[str, str]) -> None:
        """Raises NotYet if the scenario sets a key that this framework's table cannot use.

        `keys`: dotted scenario key -> the value that means it is not used; that value and "auto" are accepted.
        """
        for key, idle in keys.items():
            value: Any = self.scenario
            for part in key.split("."):
                value = getattr(value, part)
            if str(value) not in (idle, "auto"):
                told = key.rpartition(".")[2] if value is True else value
                raise self.not_yet(key, f"{told} under {self.scenario.framework}")

    def refuse_offload(self, *served: str) -> None:
        """Raises NotYet for offloaded parts (params, optimizer, gradients, activations) that are not in `served`."""
        for part in ("params", "optimizer", "gradients", "activations"):
            if self.scenario.training.offload.part(part)[1] and part not in served:
                raise self.not_yet(f"training.offload.{part}", f"{part} outside the device under "
                                   f"{self.scenario.framework}")

    def refuse_capacity(self, rule: str) -> None:
        """Raises IllegalLayout, which cites `rule`, if the scenario limits the capacity of experts.

        For frameworks whose dispatchers have no capacity.
        """
        if isinstance(self.scenario.training.routing, Capacity):
            raise self.illegal("training.routing", "capacity_factor: this framework has no expert capacity", rule)

    def illegal(self, key: str, message: str, rule: str) -> IllegalLayout:
        """Returns, without raising it, the error for a job that the framework itself refuses.

        `key`: the dotted scenario key at fault; `rule` cites upstream file and version.
        """
        return IllegalLayout(Problem(self.scenario.where(*key.split(".")), message, rule))

    def not_yet(self, key: str, message: str) -> NotYet:
        """Returns, without raising it, the error for what the framework accepts and rankscope does not model.

        `key`: the dotted scenario key at fault.
        """
        return NotYet(Problem(self.scenario.where(*key.split(".")), f"not yet: {message}"))

    def options(self, known: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Returns the scenario's `framework_options`, checked: name -> value, only those that are set.

        `known`: name -> what it may be, each a type or a literal; `int` allows 1 to 2**63 - 1, and a float like 5e8
        becomes one. Raises InputError with all unknown names and all values that are not allowed, NotYet where all
        are the other positions of switches.
        """
        given = {key: _whole(value, known.get(key, ())) for key, value in self.scenario.framework_options.items()}
        problems = [found for key, value in given.items() if (found := self._option_problem(key, value, known))]
        if problems:
            raise (NotYet if all(one.message.startswith("not yet: ") for one in problems) else InputError)(problems)
        return given

    def refuse_idle(self, options: Mapping[str, Any], name: str, where: str) -> None:
        """Raises InputError if option `name` is switched on although it changes nothing.

        `where`: end of the message, in which case it changes nothing.
        """
        if options.get(name):
            at = self.scenario.where("framework_options", name)
            raise InputError(Problem(at, f"{name}: changes nothing {where}"))

    def _option_problem(self, key: str, value: Any, known: Mapping[str, tuple[Any, ...]]) -> Problem | None:
        where = self.scenario.where("framework_options", key)
        if key not in known:
            names, close = ", ".join(sorted(known)) or "none", difflib.get_close_matches(key, known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            return Problem(where, f"unknown option {key!r} of {self.scenario.framework}{hint}: it knows {names}")
        if not any(_allows(allowed, value) for allowed in known[key]):
            return value_problem(where, key, value, known[key])
        return None


def value_problem(where: str, key: str, value: Any, known: tuple[Any, ...]) -> Problem:
    """Returns the problem of a value that an option may not have; "not yet" for a switch with one position that is.

    `known`: what it may be, each a type or a literal, in the order in which a message names them.
    """
    if isinstance(value, bool) and known == (not value,):
        return Problem(where, f"not yet: {key}: {shorten(value)} (served: {shorten(not value)})")
    wanted = " or ".join(a.__name__ if isinstance(a, type) else shorten(a) for a in known)
    is_number = int in known and type(value) is int
    bound = "" if not is_number else f" (at most {MOST})" if value > MOST else " (1 or more)"
    return Problem(where, f"{key}: expected {wanted}{bound}, got {shorten(value)}")


class Draft(Job):
    """A job while its framework's table is written; it records each value that the framework chose.

    It belongs to one call of `FrameworkAdapter.table`, which puts these defaults into the table; the job stays as it
    is.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.scenario, job.graph, job.mesh, job.unmatched_targets, job.casts_parameters)
        self._chosen: dict[str, tuple[str, str]] = {}

    @property
    def defaults(self) -> Defaults:
        """(key, value, source) of each default recorded until now, in the order of their keys' first record."""
        return tuple((key, value, source) for key, (value, source) in self._chosen.items())

    def note(self, key: str, value: str, source: str) -> None:
        """Records a value that the framework chose for `key`, with its source.

        A later record of the same key replaces it.
        """
        self._chosen[key] = (value, source)

    def auto(self, key: str, given: str, default: str, source: str) -> str:
        """Returns `given`; for "auto" the framework's `default`, which is recorded for `key` with its source."""
        if given != "auto":
            return given
        self.note(key, default, source)
        return default

    def flag(self, options: Mapping[str, Any], name: str, source: str, *, default: bool) -> bool:
        """Returns framework option `name`, a boolean; one left out, or null, is `default`, which is recorded."""
        held = options.get(name)
        given = "auto" if held is None else str(held).lower()
        return self.auto(f"framework_options.{name}", given, str(default).lower(), source) == "true"


def _whole(value: Any, allowed: tuple[Any, ...]) -> Any:
    """Returns a float with an integral value, such as 5e8, as an int where an int is allowed."""
    return int(value) if int in allowed and type(value) is float and value.is_integer() else value


def _allows(allowed: Any, value: Any) -> bool:
    if allowed is int:
        return type(value) is int and 0 < value <= MOST
    if isinstance(allowed, type):
        return type(value) is allowed
    return type(value) is type(allowed) and bool(value == allowed)
