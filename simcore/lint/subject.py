"""A recipe or a scenario as rules see it: its files, the scenario that it is read as, what the engine says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem, RankscopeError
from simcore.inputs.document import Document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath
from simcore.models.graph import model_config
from simcore.recipes.answers import Answer
from simcore.recipes.imported import Imported
from simcore.recipes.recipe_file import RecipeFile
from simcore.simulation.simulation import Simulation, legal_simulation

__all__ = ["ASSUMED", "NOT_YET", "SCENARIO", "Subject"]

SCENARIO: Final = "scenario"
"""Format of rankscope's own files."""
ASSUMED: Final = "an assumed "
"""Beginning of the place of an answer that the user did not give."""
NOT_YET: Final = "not yet: "
"""Beginning of a message about what this version does not model."""
_ABSENT: Final = object()


@dataclass(frozen=True)
class Subject:
    """A recipe with the files that belong to it, or a scenario.

    `format`: name of the recipe's format, `SCENARIO`, or "" if unknown. `document`: of the scenario, with the recipe's
    lines as its places; None if there is none, because of `problems`. `imported`: the recipe as it was read, without
    keys that are not modelled; None for a scenario. `counts`: numbers of processes, and who says each. `assumed`: keys
    of the scenario that a recipe leaves open and no answer gives. `is_swept`: one of several scenarios of a file,
    beside `num_further` that are no subjects. `common`: problems that remain with every assumed number of GPUs, None
    where none was assumed or one has no problem.
    """

    format: str
    files: tuple[RecipeFile, ...]
    document: Document | None
    imported: Imported | None = None
    counts: tuple[Answer, ...] = ()
    assumed: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    is_swept: bool = False
    num_further: int = 0
    common: frozenset[Problem] | None = None

    def place(self, problem: Problem) -> str:
        """Place of a problem; the first file for one without a place of its own, or of an answer that is assumed."""
        return self.path if not problem.where or problem.where.startswith(ASSUMED) else problem.where

    @property
    def path(self) -> str:
        """Path of the first file."""
        return self.files[0].path

    # ---- the recipe as it stands -------------------------------------------------------------------------------
    @cached_property
    def recipe(self) -> Document | None:
        """Values of the recipe's first file; None for a scenario, and for a file without keys, such as a script."""
        return None if self.format == SCENARIO or self.problems else self.files[0].mapping()

    def look(self, *names: str) -> Any:
        """Value of the first of these dotted keys of the recipe that it has and that is not null; None if none is."""
        values = (self._value(self.recipe, tuple(name.split("."))) for name in names)
        return next((value for value in values if value is not None), None)

    def line(self, *names: str) -> str:
        """Place of the first of these dotted keys that the recipe has; of the file if it has none."""
        paths = [tuple(name.split(".")) for name in names]
        found = next((path for path in paths if self._value(self.recipe, path, _ABSENT) is not _ABSENT), None)
        return self.path if self.recipe is None or found is None else self.recipe.where(found)

    def has(self, name: str) -> bool:
        """True if the recipe has the dotted key, also as null."""
        return self._value(self.recipe, tuple(name.split(".")), _ABSENT) is not _ABSENT

    # ---- the scenario ------------------------------------------------------------------------------------------
    def says(self, key: str) -> Any:
        """Value of a dotted key of the scenario; None if the document does not say it."""
        return self._value(self.document, split_key(key))

    def where(self, key: str) -> str:
        """Place of a dotted key of the scenario: the recipe's line, or the file for a default of the release."""
        return self.document.where(split_key(key)) if self.document else self.path

    @cached_property
    def scenario(self) -> Scenario | None:
        """The scenario; None if there is none or a value is missing or wrong."""
        return self._parsed if isinstance(self._parsed, Scenario) else None

    @cached_property
    def legal(self) -> Simulation | None:
        """The job with its framework's settings, nothing placed; None if it is refused or not modelled."""
        return self._asked if isinstance(self._asked, Simulation) else None

    @cached_property
    def refusal(self) -> RankscopeError | None:
        """Refusal of the scenario by its reader, the framework or the engine; None if there is none."""
        return next((one for one in (self._parsed, self._asked) if isinstance(one, RankscopeError)), None)

    def illegal(self) -> tuple[Problem, ...]:
        """Problems with which the framework itself refuses the layout; () for all other refusals."""
        return self._refused(IllegalLayout)

    def wrong(self) -> tuple[Problem, ...]:
        """Problems of values of the scenario, also of those that a model of its layers finds; () for other refusals."""
        return self._refused(InputError)

    @property
    def is_refused(self) -> bool:
        """True if the layout has a problem, other than that it is not modelled."""
        return bool(self.illegal() or self.wrong())

    def _refused(self, kind: type[RankscopeError]) -> tuple[Problem, ...]:
        problems = self.refusal.problems if isinstance(self.refusal, kind) else ()
        return tuple(one for one in problems if self.common is None or one in self.common)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Fields of the model's configuration, those that the scenario changes too; {} for an unknown model."""
        model = self.says("model")
        reference = model.get("config") if isinstance(model, dict) else model
        overrides = model.get("overrides") if isinstance(model, dict) else None
        try:
            return dict(model_config(str(reference), overrides, "model"))
        except InputError:
            return {}

    # ---- what is not judged ------------------------------------------------------------------------------------
    @property
    def is_whole(self) -> bool:
        """True if nothing of the recipe was left out, so that the layout is the one that it asks for."""
        return not any(self._left_out())

    def unjudged(self) -> Iterator[str]:
        """Texts that say for what part rules were not asked."""
        if self.num_further:
            yield f"{self.path}: {self.num_further:,} further scenarios of the sweep"
        yield from self._left_out()
        if self.imported is not None:
            yield from (f"{one.where}: {one}" for one in self.imported.questions)
        if isinstance(self.refusal, NotYet) or (self.refusal is not None and not self.config):
            yield from map(str, self.refusal.problems)

    def _left_out(self) -> Iterator[str]:
        """Texts about settings of the recipe that the scenario does not have."""
        if self.imported is not None:
            left = (one for one in self.imported.left if one.kind == "unknown" and not one.key)
            yield from (f"{one.where}: {one.why}" for one in left)
            yield from map(str, self.imported.refused)
            yield from (str(one) for one in self.imported.wrong if one.message.startswith(NOT_YET))

    # ---- inner -------------------------------------------------------------------------------------------------
    @cached_property
    def _parsed(self) -> Scenario | RankscopeError | None:
        if self.document is None or (self.imported is not None and self.imported.questions):
            return None
        try:
            return parse_scenario(self.document, swept=self.is_swept)
        except RankscopeError as error:
            return error

    @cached_property
    def _asked(self) -> Simulation | RankscopeError | None:
        if self.scenario is None or self.scenario.workload != "train":
            return None
        try:
            return legal_simulation(self.scenario)
        except RankscopeError as error:
            return error

    def _value(self, document: Document | None, path: KeyPath, absent: Any = None) -> Any:
        value: Any = document.data if document else absent
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return absent
            value = value[key]
        return value
