"""Evidence for a layout: published measurements of it, and upstream recipes that ship it.

[Note: evidence]
A simulated number is as sure as what is known about the layout. `kind` names the nearest thing that is known:
"measured" is a published measurement of this very layout; "recipe" is a file in which the framework's authors ship it,
without any published measurement; "class" is measured runs of other layouts of the same class, see `[Note: bands]`; and
"none" is none of these. With the last two kinds, no run of the layout is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["COUNTED", "Evidence", "EvidenceKind", "MeasuredRun", "Recipe"]

EvidenceKind = Literal["measured", "recipe", "class", "none"]

COUNTED: Mapping[EvidenceKind, str] = {
    "measured": "measured run of this very layout",
    "recipe": "shipped as a recipe, no measured run published",
    "class": "no known run or recipe, measured runs of its class",
    "none": "no known run or recipe, no measured run of its class",
}
"""Words for a number of scenarios, by kind of their evidence."""

_SHOWN = 2
"""Runs or recipes that a sentence names."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasuredRun(_Frozen):
    """One measured run: id of its row, where it was published, the machine, and whether it ran out of memory."""

    id: str
    source: str
    topology: str
    oom: bool = False


class Recipe(_Frozen):
    """One file of a repository that ships the layout, at a release.

    `differs`: keys of the scenario that size tensors and do not place them, such as `training.seq_len`, with the
    recipe's values where those are others. `note`: what else its authors say, such as on which GPUs its test runs.
    """

    repository: str
    file: str
    release: str
    differs: dict[str, str] = {}
    note: str = ""


class Evidence(_Frozen):
    """Known runs of a layout, and the nearest `kind` of them, see [Note: evidence].

    `layout_class`: name of its class (`simcore.memory.band.layout_class`); `class_runs`: measured runs of that class.
    """

    kind: EvidenceKind
    runs: tuple[MeasuredRun, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    layout_class: str
    class_runs: int

    def sentence(self, *, has_phases: bool) -> str:
        """One line for a terminal or a page, with the sources; folders of recipes are in the fields alone.

        `has_phases`: the job has phases beside its training step, such as generation, of which no run was measured.
        """
        num, name = self.class_runs, self.layout_class
        of_step = ", of training steps alone" if has_phases and num else ""
        of_class = f"{num or 'no'} measured run{'' if num == 1 else 's'} of its class ({name}{of_step})"
        if self.kind == "measured":
            return f"measured run of this very layout: {_listed([_run(run) for run in self.runs])}"
        if self.kind == "recipe":
            shipped = _listed([_recipe(recipe) for recipe in self.recipes])
            return f"shipped as a recipe, no measured run published: {shipped}; {of_class}"
        return f"nobody is known to have run this layout; {of_class}"


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _run(run: MeasuredRun) -> str:
    return f"{run.id} on {run.topology}{', out of memory' if run.oom else ''} ({run.source})"


def _recipe(recipe: Recipe) -> str:
    there = ", ".join(f"{key} {value}" for key, value in recipe.differs.items())
    further = "; ".join(filter(None, [f"there {there}" if there else "", recipe.note]))
    file = recipe.file.rpartition("/")[2]
    return f"{file} of {recipe.repository}, {recipe.release}{f' ({further})' if further else ''}"
