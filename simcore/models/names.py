"""Built-in models: their configurations, and names: a preset's own, ids of Hugging Face repositories, aliases.

All names are in one table, `presets/names.toml`. Case does not matter, and a repository may be named without its
owner. Mirrors are in the table one by one: a copy may differ from its original (`unsloth/phi-4` has Llama's layers),
and one that is stored in few bits has another configuration.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from simcore.inputs.block import shorten

__all__ = ["Named", "fields_of", "find", "how_to_go_on", "ids_of", "known_presets", "names_of", "of_preset",
           "presets", "text_of"]

_FOLDER: Final = "presets"
_NEAR: Final = 0.6
"""Likeness from which on a name may be meant, of 1."""
_SAME: Final = 0.75
"""Likeness of the first words of two names of one family: another family is not meant by a name that is like it."""
_ID: Final = re.compile(r"[\w-]+/[\w.-]+", re.ASCII)
"""Id of a repository: owner and name."""


@dataclass(frozen=True, slots=True)
class Named:
    """The preset that answers to a name.

    `name`: as the table spells it. `changed`: fields of the configuration in which this repository differs from the
    preset, none of which changes a weight's shape.
    """

    preset: str
    name: str
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """True for the preset's own name."""
        return self.name == self.preset


def find(reference: str) -> Named | None:
    """The preset that a name stands for, None if no preset has it.

    `reference`: a preset's name, a repository's id (`Qwen/Qwen3-8B`), its part after the owner, or an alias.
    """
    return _index().get(reference.strip().casefold())


def ids_of(preset: str) -> tuple[str, ...]:
    """Ids of repositories whose configuration a preset has, its own first; () for a preset that is made up."""
    return tuple(_table().get(preset, {}).get("ids", ()))


@lru_cache(maxsize=1)
def known_presets() -> tuple[str, ...]:
    """Names of the built-in models, sorted."""
    folder = resources.files("simcore.models").joinpath(_FOLDER)
    files = (file.name for file in folder.iterdir())
    return tuple(sorted({*_packed(), *(name.removesuffix(".json") for name in files if name.endswith(".json"))}))


@lru_cache(maxsize=1)
def _packed() -> Mapping[str, Mapping[str, Any]]:
    """Built-in models by name, as a wheel has them; none in a checkout, where each is a file (`.ci/packed.py`)."""
    file = resources.files("simcore.models").joinpath("presets.json")
    fields: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return fields


@lru_cache(maxsize=64)
def fields_of(preset: str) -> Mapping[str, Any]:
    """The configuration of a preset, by field."""
    if preset in _packed():
        return _packed()[preset]
    file = resources.files("simcore.models").joinpath(_FOLDER, f"{preset}.json")
    fields: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return fields


def presets() -> tuple[str, ...]:
    """Names of all presets that the table has."""
    return tuple(_table())


def names_of(preset: str) -> tuple[str, ...]:
    """All names that the table has for a preset: its own, its repositories' ids, its aliases."""
    return (preset, *ids_of(preset), *_table().get(preset, {}).get("aliases", ()))


def text_of(reference: str) -> str:
    """Name of the built-in model that is the text model alone of one with a vision tower; "" if there is none."""
    named = find(reference)
    name = f"{named.preset}-text" if named else ""
    return name if name in known_presets() else ""


def how_to_go_on(reference: str) -> str:
    """One line on a name that no preset has: the nearest name, and the two steps to a configuration of one's own."""
    import difflib

    key = reference.strip().casefold()
    near = [name for name in difflib.get_close_matches(key, _index(), n=8, cutoff=_NEAR) if
            difflib.SequenceMatcher(None, _family(name), _family(key)).ratio() >= _SAME]
    hint = f" (did you mean {_spelled(_index()[near[0]], key)}?)" if near else ""
    repository = reference.strip() if _ID.fullmatch(reference.strip()) else "OWNER/NAME"
    return (f"unknown model {shorten(reference)}{hint}: `rankscope models` lists those that are built in; for another, "
            f"download its config.json (`hf download {repository} config.json`) and give its path (model: "
            "path/to/config.json)")


def _family(name: str) -> str:
    """Letters that the last part of a name begins with, such as "qwen" of `Qwen/Qwen3-8B`."""
    return "".join(itertools.takewhile(str.isalpha, name.rpartition("/")[2]))


def _spelled(found: Named, key: str) -> str:
    """A preset's name; beside it the id that is near, where an id was asked for."""
    return f"{found.preset!r}" if found.is_own or "/" not in key else f"{found.preset!r}, {found.name}"


def of_preset(reference: str) -> tuple[tuple[str, str, str, str], ...]:
    """The note on which preset answers to an id or alias: (what, value, kind, source) as reports list assumptions.

    () for a preset's own name, and for a path.
    """
    named = find(reference)
    if named is None or named.is_own:
        return ()
    differs = "".join(f", {key} {value:,}" for key, value in named.changed.items())
    return (("model", f"preset {named.preset}{differs}", "derived", f"{named.name}: config.json with the same shapes"),)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Any]]:
    file = resources.files("simcore.models").joinpath(_FOLDER, "names.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _index() -> Mapping[str, Named]:
    """Names without case -> the preset; a preset's own name comes before another's repository of the same name."""
    found: dict[str, Named] = {preset.casefold(): Named(preset, preset) for preset in _table()}
    whole = list(_named())
    found |= {named.name.casefold(): named for named in whole if named.name.casefold() not in found}
    for named in whole:
        found.setdefault(named.name.rpartition("/")[2].casefold(), named)
    return found


def _named() -> Iterator[Named]:
    for preset in _table():
        changed = _table()[preset].get("changed", {})
        for name in names_of(preset)[1:]:
            yield Named(preset, name, changed.get(name, {}))
