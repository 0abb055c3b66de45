"""Keys of recipes of which their reader says nothing, or two things.

    PYTHONPATH=tests python -m recipes.accounts FOLDER...   # recipes of upstream, fetched and never committed
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from recipes.upstream import SUFFIXES, answered, named_files
from simcore.errors import InputError
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile, read_files
from simcore.recipes.registry import format_of

Place = tuple[str, str]
"""Place (`file:line`) and dotted key."""


def keys_of(files: Iterable[RecipeFile]) -> list[Place]:
    """Every value of files that are read as mappings."""
    return [(one.where, one.key) for file in files for one in Reader(file.document).all()]


def unaccounted(imported: Imported, keys: Sequence[Place]) -> Iterator[str]:
    """Keys that are in no list, in two, or that decide something of which nothing is said.

    A key that is refused, or that a question is about, stands in a message.
    """
    used = {(one.where, one.text) for one in imported.origins.values() if one.kind == "recipe"}
    listed = Counter([*((one.where, one.key) for one in imported.left),
                      *((one.where, one.key) for one in imported.decides)])
    messages = [one.message for one in (*imported.unknown, *imported.refused, *imported.wrong)]
    for place in keys:
        count = (place in used) + listed[place]
        if count > 1:
            yield f"{place[1]}: in {count} lists"
        elif not count and not any(place[1] in message for message in messages):
            yield f"{place[1]}: in no list"
    for one in imported.decides:
        if not (one.keys or one.why):
            yield f"{one.key}: read, nothing is said of why"


def main() -> int:
    """Prints what is found in recipes of upstream, most frequent first, with the first file that has it."""
    found: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Path] = {}
    for name in map(Path, sys.argv[1:]):
        for path in [name] if name.is_file() else sorted(one for one in name.rglob("*") if one.suffix in SUFFIXES):
            for line in _of_file(path):
                found[line] += 1
                first.setdefault(line, path)
    for told, count in found.most_common():
        sys.stdout.write(f"{count:4} {': '.join(told)}  [{first[told]}]\n")
    return int(bool(found))


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        kind = format_of(read_files([str(path)]))
        if kind is None or kind[1].mapping() is None:
            return
        paths = [str(path), *named_files(path)]
        imported = answered(paths, import_recipe(paths, Answers()), 8, "dgx-h100")
    except InputError:
        return
    for line in unaccounted(imported, keys_of(read_files(paths))):
        yield kind[0].name, line


if __name__ == "__main__":
    sys.exit(main())
