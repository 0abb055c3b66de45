"""The outline of a recipe while a scenario is written: keys of the recipe, and what became of each of the scenario's.

The counterpart of `draft`: there a recipe's keys become a scenario, here a scenario's keys become a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simcore.errors import Problem
from simcore.frameworks.registry import has_option
from simcore.inputs.block import shorten
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.imported import Left
from simcore.recipes.settled import NOT_RUN, Settled, given_keys

__all__ = ["Outline", "Put"]


@dataclass(frozen=True, slots=True)
class Put:
    """A key of the recipe with its value. `stand_in`: it stands for something of the user's, such as a data set.

    `beside`: block of other stand-ins without which it means nothing, "" for none.
    """

    key: str
    value: Any
    stand_in: bool = False
    beside: str = ""


@dataclass
class Outline:
    """Recipe that is being put together for a scenario; `format`: name of its format.

    A format asks for values of the scenario by `value` and `given`, and writes keys of the recipe by `put`. A key of
    the scenario that the recipe cannot say goes to `refuse`, one that changes nothing in it to `leave`. `converting`
    reads the recipe back and refuses by name whatever then differs, so nothing is lost by forgetting a key.
    """

    format: str
    settled: Settled
    puts: dict[str, Put] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    refused: dict[str, Problem] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    means: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    # ---- the scenario ------------------------------------------------------------------------------------------
    def value(self, key: str) -> Any:
        """Value of a key, as the scenario says it or its framework chooses it; None if neither does."""
        self._asked.add(key)
        return self.settled.values.get(key)

    def has_option(self, option: str) -> bool:
        """True if the scenario's framework has an option."""
        return has_option(self.value("framework"), option)

    def given(self, key: str) -> Any:
        """Value of a key that the scenario's file says and that has an effect; None if it leaves it out."""
        return self.value(key) if key in self.given_keys and key not in self.settled.idle else None

    @cached_property
    def given_keys(self) -> Mapping[str, KeyPath]:
        """Path of each key that the scenario's file says, by dotted key."""
        return given_keys(self.settled.scenario.document)

    def where(self, key: str) -> str:
        """Place of a key of the scenario, for messages."""
        return self.settled.scenario.where(*split_key(key))

    # ---- the recipe --------------------------------------------------------------------------------------------
    def put(self, key: str, value: Any, *said: str, stand_in: bool = False, beside: str = "") -> None:
        """Writes a key of the recipe (dotted); `said`: keys of the scenario that it says.

        `stand_in`: it stands for something of the user's that a scenario does not have, such as a data set; a recipe
        that has its own keeps it, and gets none that goes with it: `beside`, the block of the other stand-ins.
        """
        self.puts[key] = Put(key, value, stand_in, beside)
        self.said.update(said)

    def set_variable(self, name: str, value: str, *said: str) -> None:
        """Sets a variable of the environment in the launch command."""
        self.environment[name] = value
        self.said.update(said)

    # ---- keys of the scenario that the recipe does not say -----------------------------------------------------
    def refuse(self, key: str, message: str) -> None:
        """Refuses a key that no recipe of this format can say; `message`: why."""
        self.refused[key] = Problem(self.where(key), f"not yet: {key}: {message}")

    def leave(self, key: str, why: str) -> None:
        """Lists a key of the scenario that the recipe does not have, on which nothing in it depends."""
        if key in self.given_keys:
            self.left.append(Left("no effect", self.where(key), key, shorten(self.settled.values.get(key)), why))
        self.said.add(key)

    def as_without(self, key: str) -> None:
        """Tells that the value of a key is the one that the simulation has without it, so that no recipe says it."""
        self.counts_as(key, None)

    def counts_as(self, key: str, value: Any) -> None:
        """Tells which value, when the recipe is read, says what the scenario's value says; None: none, or the same."""
        self.means[key] = value

    # ---- result ------------------------------------------------------------------------------------------------
    def write_environment(self) -> None:
        """Sets the variables of the environment that the scenario says, in the launch command of any format."""
        workspace = self.given("environment.cublas_workspace_config")
        if workspace not in (None, "auto"):
            self.set_variable("CUBLAS_WORKSPACE_CONFIG", workspace, "environment.cublas_workspace_config")
        if self.given("environment.expandable_segments"):
            self.set_variable("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "environment.expandable_segments")

    def leave_rest(self) -> None:
        """Lists keys that no run has, and those without effect; refuses what the format never asked for."""
        for key in self.given_keys:
            why = NOT_RUN.get(key.partition(".")[0]) or NOT_RUN.get(key) or self.settled.idle.get(key)
            if key == "name" or key in self.said | {*self.means, *self.refused}:
                continue
            if why:
                self.leave(key, why)
            elif key not in self._asked and key not in ("topology", "framework", "model"):
                self.refuse(key, f"no recipe of {self.format} says this")

    def nested(self) -> dict[str, Any]:
        """Keys of the recipe within one another."""
        made: dict[str, Any] = {}
        for put in self.puts.values():
            inner = made
            *path, last = put.key.split(".")
            for name in path:
                inner = inner.setdefault(name, {})
            inner[last] = put.value
        return made
