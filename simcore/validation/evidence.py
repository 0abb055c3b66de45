"""Evidence for the layout of a job, from the measured runs and recipes that come with rankscope.

Measured runs are the rows of `simcore.validation.runs`; recipes are those of `recipes.json` in the same folder. Nothing
is simulated, and only rows that agree in framework, mesh and method are read as scenarios, each of them once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from simcore.errors import RankscopeError
from simcore.frameworks.setup import configuration, prepare
from simcore.inputs.document import Document, read_text
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.shipped import data_folder
from simcore.memory.band import band_of, layout_class
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.results.evidence import Evidence, EvidenceKind, MeasuredRun, Recipe
from simcore.validation.layout import SIZES, VERSION, job_layout
from simcore.validation.runs import MAX_BYTES

__all__ = ["Known", "evidence_of", "known_recipes", "known_runs"]

_AXES: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """One measured run or recipe that is shipped; `asked`: keys of its scenario, which has no name.

    `of_data`: keys of which a recipe leaves the value to its data set.
    """

    shown: MeasuredRun | Recipe
    asked: Mapping[str, Any]
    of_data: frozenset[str] = frozenset()

    def scenario(self) -> Scenario:
        """Its scenario; InputError if the shipped file is wrong."""
        return parse_scenario(Document("evidence", {"name": "evidence", **self.asked}))


def evidence_of(job: Job, framework: Framework) -> Evidence:
    """Known runs and recipes of the job's layout, and the number of measured runs of its class."""
    outline, size = _of_scenario(job.scenario)
    known, near = known_runs().get((outline, size), ()), known_recipes().get(outline, ())
    runs: list[MeasuredRun] = []
    recipes: list[Recipe] = []
    if known or near:  # a layout as text takes time, and most have no relatives
        layout, model = job_layout(job, framework), configuration(job.scenario)
        runs = [one.shown for one in known
                if isinstance(one.shown, MeasuredRun) and _difference(one, layout, model) == {}]
        recipes = [_beside(one.shown, differing, one.of_data) for one in near
                   if isinstance(one.shown, Recipe) and (differing := _difference(one, layout, model)) is not None
                   and differing.keys() <= SIZES | {VERSION}]
    name = layout_class(job, framework)
    num = band_of(name).num
    kind: EvidenceKind = "measured" if runs else "recipe" if recipes else "class" if num else "none"
    return Evidence(kind=kind, runs=tuple(runs), recipes=tuple(recipes), layout_class=name, class_runs=num)


def _beside(recipe: Recipe, differing: Mapping[str, str], of_data: frozenset[str]) -> Recipe:
    """The recipe, with its values of the keys that it has otherwise; its version is its release."""
    told = {key: differing[key] for key in sorted(differing.keys() - of_data - {VERSION})}
    return recipe.model_copy(update={"differs": told})


def _difference(one: Known, layout: Mapping[str, str], model: Mapping[str, Any]) -> dict[str, str] | None:
    """Keys in which `one` differs from a layout, with its values ("" for a key that it lacks).

    None for another model, and for a scenario that is refused: it is then no layout that was accepted.
    """
    try:
        if _model(one) != model:
            return None
        theirs = _layout(one)
    except RankscopeError:
        return None
    return {key: theirs.get(key, "") for key in layout.keys() | theirs.keys() if layout.get(key) != theirs.get(key)}


@cache
def _model(one: Known) -> Mapping[str, Any]:
    return configuration(one.scenario())


@cache
def _layout(one: Known) -> Mapping[str, str]:
    return job_layout(*prepare(one.scenario()))


# ---- what is shipped -------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def known_runs() -> Mapping[tuple[object, ...], list[Known]]:
    """Measured runs that come with rankscope and have a scenario, by outline and size of their layout."""
    found: dict[tuple[object, ...], list[Known]] = defaultdict(list)
    for file in sorted(data_folder("measured").glob("*.jsonl")):
        for line in filter(str.strip, read_text(file, MAX_BYTES).splitlines()):
            row = json.loads(line)
            if asked := row.get("scenario"):
                run = MeasuredRun(id=row["id"], source=row["source"], topology=_machine(asked),
                                  oom=row.get("verdict") == "oom")
                found[(_outline(asked), _size(asked))].append(Known(run, asked))
    return found


@lru_cache(maxsize=1)
def known_recipes() -> Mapping[tuple[object, ...], list[Known]]:
    """Recipes of upstream repositories, from `recipes.json`, by outline of their layout."""
    found: dict[tuple[object, ...], list[Known]] = defaultdict(list)
    for told in json.loads(read_text(data_folder("measured") / "recipes.json")):
        asked, of_data = told.pop("scenario"), frozenset(told.pop("of_data", ()))
        found[_outline(asked)].append(Known(Recipe(**told), asked, of_data))
    return found


def _machine(asked: Mapping[str, Any]) -> str:
    topology = asked["topology"]
    return str(topology if isinstance(topology, str) else topology["file"])


def _outline(asked: Mapping[str, Any]) -> tuple[object, ...]:
    """Keys in which equal layouts agree before any default of a framework is filled in."""
    mesh = asked.get("mesh", {})
    return (asked.get("workload", "train"), asked["framework"], *(mesh.get(axis, 1) for axis in _AXES),
            asked["training"].get("method", "full"))


def _of_scenario(scenario: Scenario) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """(`_outline`, `_size`) of a scenario's own keys."""
    training = scenario.training
    degrees = (getattr(scenario.mesh, axis) for axis in _AXES)
    return ((scenario.workload, scenario.framework, *degrees, training.method),
            (training.seq_len, training.micro_batch_size))


def _size(asked: Mapping[str, Any]) -> tuple[object, ...]:
    return asked["training"]["seq_len"], asked["training"].get("micro_batch_size", 1)
