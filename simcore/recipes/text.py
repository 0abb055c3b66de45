"""Texts of an imported scenario, with the origin of each key beside it, and of a recipe that was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from simcore.inputs.block import shorten
from simcore.inputs.dump import yaml_entry
from simcore.inputs.scenario import Scenario
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.recipes.converted import Converted
from simcore.recipes.imported import Imported, Left

__all__ = ["left_line", "missed", "missed_line", "origin_lines", "recipe_text", "scenario_text"]

_COLUMN: Final = 40
"""Column at which origins begin, unless a value is longer."""
_WIDTH: Final = 140
"""Columns of a line on which several keys stand, unless one is longer."""
_GLUE: Final = "\0"
"""Stands for a blank at which no line ends."""
_NOT_YET: Final = "not yet: "
_MOST_NAMED: Final = 10
"""Keys that are named in a line about what is left out."""
_DECIDES: Final = "Read, and named in no line above."
_LISTS: Final = {"not modelled": "Not modelled: it changes what is run, and the answer leaves it out.",
                 "default": "Not said by the recipe, and decided by its release.",
                 "unknown": "Left out by --loose.", "no effect": "Without effect here."}


def scenario_text(imported: Imported) -> str:
    """YAML text of an imported scenario; reading it gives `imported.values` back.

    The first line names the recipe's file with its folder, the others without.
    """
    lines = [f"# Imported from {imported.path} ({imported.format}). Beside each key stands what it comes from."]
    lines += _lines(imported.values, (), imported)
    for kind, head in _LISTS.items():
        rows = [(one.where, one.key, one.value, one.why) for one in imported.left if one.kind == kind]
        lines += _listed(head, rows, imported)
    lines += _listed(_DECIDES, [(one.where, one.key, one.value, str(one)) for one in imported.decides], imported)
    return "".join(f"{line}\n" for line in lines)


def origin_lines(imported: Imported) -> Iterator[str]:
    """Lines of text, one for each key of the scenario with its value and what it comes from."""
    width = max((len(dotted(path)) for path in imported.origins), default=0)
    for path, origin in imported.origins.items():
        value: Any = imported.values
        for key in path:
            value = value[key]
        yield _one_line(f"{dotted(path):<{width}}  {shorten(value)}  [{origin}]")


def recipe_text(converted: Converted, name: str) -> str:
    """Text of a recipe of the scenario `name`; where its file has comments, its launch and what it leaves out first."""
    return "".join(f"{line}\n" for line in _head(converted, name)) + converted.text


def left_line(left: Left) -> str:
    """A key of a scenario that its recipe does not have, with its value and the reason, in one line."""
    return _one_line(f"{left.key}: {left.value}: {left.why}" if left.key else f"{left.where}: {left.why}")


def missed(left: Iterable[Left]) -> dict[str, Left]:
    """Keys that a recipe says and the answer leaves out: refused ones, then those that change little, then unknown."""
    rows = [one for one in left if one.kind in ("not modelled", "unknown") and one.where.rpartition(":")[2].isdigit()]
    return {one.key or one.why.removeprefix(_NOT_YET).partition(": ")[0]: one for one in sorted(rows, key=_weight)}


def missed_line(keys: Iterable[str]) -> str:
    """Line about keys of a recipe that the answer leaves out: all to ten, of more the number."""
    names = [*keys]
    more = len(names) - _MOST_NAMED
    *first, last = names if more <= 0 else [*names[:_MOST_NAMED - 1], f"{more + 1} more keys"]
    told = f"{', '.join(first)} and {last}" if first else last
    return f"without {told} of the recipe, which may change the answer"


def _weight(one: Left) -> int:
    return 0 if one.kind == "unknown" and not one.key else 1 if one.kind == "not modelled" else 2


def _head(converted: Converted, name: str) -> Iterator[str]:
    if not converted.has_comments:
        return
    yield _one_line(f"# {name}, written by rankscope. Data, learning rate and files are yours.")
    for line in converted.launch.splitlines():
        yield _one_line(f"# Launch: {line}")
    for one in converted.left:
        yield _one_line(f"# Not in it: {left_line(one)}")


def _lines(values: Mapping[str, Any], path: KeyPath, imported: Imported) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in values.items() if path else sorted(values.items(), key=_place):
        inner = (*path, key)
        if isinstance(value, Mapping) and inner not in imported.origins:
            yield f"{indent}{yaml_entry(key, 0).removesuffix(' 0')}"
            yield from _lines(value, inner, imported)
        else:
            yield _commented(f"{indent}{yaml_entry(key, value)}",
                             _without_folder(str(imported.origins.get(inner, "")), imported))


def _place(entry: tuple[str, Any]) -> int:
    """Place of a key at the top of a scenario."""
    names = [*Scenario.model_fields]
    return names.index(entry[0]) if entry[0] in names else len(names)


def _commented(text: str, origin: str) -> str:
    """A line with a comment."""
    plain = _one_line(origin)
    return f"{text:<{_COLUMN}}  # {plain}" if plain else text


def _listed(head: str, rows: Iterable[tuple[str, str, str, str]], imported: Imported) -> Iterator[str]:
    """A list of keys (place, key, value, reason) under its heading; keys of one place and reason stand together."""
    together: dict[tuple[str, str], list[str]] = {}
    for where, key, value, why in rows:
        together.setdefault((where, why), []).append(f"{key}: {value}" if key else "")
    if together:
        yield f"# {head}"
    for (where, why), keys in together.items():
        place, reason = _one_line(_without_folder(where, imported)), _one_line(_without_folder(why, imported))
        if len(keys) == 1:
            yield f"#   {place} {_one_line(keys[0])}: {reason}" if keys[0] else f"#   {place}: {reason}"
        else:
            yield f"#   {place}: {reason}:"
            whole = ", ".join(_one_line(key).replace(" ", _GLUE) for key in keys)
            for line in wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False):
                yield f"#     {line.replace(_GLUE, ' ')}"


def _without_folder(text: str, imported: Imported) -> str:
    """Text in which places of the recipe's own file are without its folder."""
    return text.replace(imported.path, Path(imported.path).name)


def _one_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)
