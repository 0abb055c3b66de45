"""Lists of what a user chooses from: models, machines, frameworks, keys of a scenario, options of a framework."""

from __future__ import annotations

from functools import cache
from typing import Any

from simcore.docgen import listing
from simcore.frameworks.registry import known_frameworks
from simcore.inputs.document import read_document
from simcore.inputs.scenario_keys import key_rows
from simcore.inputs.shipped import data_folder
from simcore.recipes.conversion.writing import writable_formats

__all__ = ["catalogue", "options", "start"]


@cache
def catalogue() -> dict[str, Any]:
    """Lists for the fields of the page, as JSON has them."""
    keys = [{"key": key.strip("`"), "values": values, "default": default, "says": says}
            for key, values, default, says in key_rows()]
    return {"models": listing.models(), "machines": listing.machines(), "frameworks": listing.frameworks(),
            "keys": keys, "formats": list(writable_formats()), "start": start()}


@cache
def start() -> dict[str, Any]:
    """Keys of the job that a page shows first: a shipped example."""
    document = read_document(data_folder("scenarios") / "nano-explore" / "lora.yaml")
    return {**document.without("search").data, "name": "studio"}


@cache
def options(name: str) -> list[dict[str, Any]]:
    """Options of a framework, as JSON has them; none for an unknown name, which the job's own answer tells."""
    return listing.options(name) if name in known_frameworks() else []
