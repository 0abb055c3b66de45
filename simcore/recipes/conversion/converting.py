"""Recipes of scenarios. What is written is read back: in every key the recipe asks for what the scenario asks for."""

from __future__ import annotations

import re
from pathlib import Path

from simcore.inputs.scenario import Scenario
from simcore.recipes.conversion.patching import patched
from simcore.recipes.conversion.script_patching import patched_script
from simcore.recipes.conversion.writing import Writing
from simcore.recipes.converted import Converted
from simcore.recipes.recipe_file import read_files

__all__ = ["convert"]


def convert(scenario: Scenario, named: str, into: str = "", file: str = "") -> Converted:
    """Recipe of a scenario in the format `named`. `into`: a recipe of the user's that is changed as little as needed.

    `file`: its name, which the launch command and the files beside it have; "" or one with another ending than the
    format's, or `into`'s: that of `into`, else the scenario's.

    InputError for a name that is no format that can be written; NotYet for a scenario of another framework or workload.
    Raises what `settled` raises for one that its framework refuses. Keys that the format cannot say are in the result.
    """
    made = Writing.of(scenario, named)
    endings = (made.writer.suffix, Path(into).suffix or made.writer.suffix)
    is_named = re.fullmatch(r"[\w.-]+", file) and Path(file).suffix in endings
    if is_named or into:
        made = made.of_file(file if is_named else into)
    if into:
        own = read_files([into])[0]
        known = made.writer.arguments
        return made.converted(patched(made, own) if known is None else patched_script(made, own, known))
    return made.converted(made.writer.text(made.outline.nested(), made.job))
