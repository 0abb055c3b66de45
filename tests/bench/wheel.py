"""Size of the wheel by its folders, at an earlier commit and in this checkout, beside what each folder now answers.

    python tests/bench/wheel.py --before d501dec9       # prints the table of docs/scale.md

A file counts as the wheel stores it: its name twice, its line in RECORD, and its bytes deflated. Configurations of
models are one file there (`.ci/packed.py`), on both sides. What a folder answers is read from pages and tables of the
same tree.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = ("simcore/", "viz/", "topologies/", "scenarios/", "tests/truth/measured/")
"""Folders of the wheel (pyproject.toml only-include)."""
LEFT_OUT: Final = re.compile(r"scenarios/[^/]+/answers/|tests/truth/measured/(fitted|judged)\.json$|__pycache__")
PRESETS: Final = "simcore/models/presets/"
HEADERS: Final = 30 + 46
"""Bytes of a file's two headers in a zip archive, without its name."""
IN_RECORD: Final = 60
"""Bytes of a file's line in RECORD, without its name; hashes do not deflate."""
LITTLE: Final = 10 * 1024
"""Growth in bytes below which a folder has no row."""
_COLUMNS: Final = 6
"""Columns of the table of recipes, at least: recipes, all, answered, and why others are not."""
Tree = Mapping[str, bytes]


def tree_of(revision: str) -> Tree:
    """Files of a commit by their path; "" is the checkout, without files that no wheel and no page needs."""
    if revision:
        made = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True,  # noqa: S607
                              capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(made)) as archive:
            found = ((one.name, archive.extractfile(one)) for one in archive)
            return {name: file.read() for name, file in found if file is not None}
    files = (path for part in (*PARTS, "docs/") for path in sorted((ROOT / part).rglob("*")) if path.is_file())
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}


def packed(tree: Tree) -> dict[str, bytes]:
    """Files of the wheel, with the configurations of models in one."""
    found = {name: data for name, data in tree.items() if name.startswith(PARTS) and not LEFT_OUT.search(name)}
    listed = [name for name in found if name.startswith(PRESETS) and name.endswith(".json")]
    configurations = {name: found.pop(name) for name in listed}
    one = {name.rpartition("/")[2].removesuffix(".json"): json.loads(data) for name, data in configurations.items()}
    return {**found, "simcore/models/presets.json": json.dumps(one, separators=(",", ":")).encode()}


def stored(name: str, data: bytes) -> int:
    """Bytes of a file in the wheel."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return len(deflate.compress(data) + deflate.flush()) + HEADERS + 2 * len(name) + IN_RECORD + len(name)


def folder_of(name: str) -> str:
    """Folder of the table that a file belongs to; modules of simcore itself are its first row."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "simcore" and len(parts) > 2 else parts[0]


def sizes(tree: Tree) -> tuple[Counter[str], Counter[str]]:
    """(bytes, files) of the wheel by folder."""
    size, files = Counter[str](), Counter[str]()
    for name, data in packed(tree).items():
        size[folder_of(name)] += stored(name, data)
        files[folder_of(name)] += 1
    return size, files


# ---- what was bought ------------------------------------------------------------------------------------------------
def _rows(tree: Tree, page: str) -> Iterator[list[str]]:
    for line in tree[page].decode().splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def _models(tree: Tree) -> str:
    fields = [json.loads(data) for name, data in tree.items() if name.startswith(PRESETS) and name.endswith(".json")]
    return f"{len(fields)} models of {len({one.get('model_type') for one in fields})} families"


def _recipes(tree: Tree) -> str:
    counted = [(int(row[1]), int(row[2])) for row in _rows(tree, "docs/recipes.md")
               if row[0] != "together" and len(row) >= _COLUMNS and row[1].isdigit() and row[2].isdigit()]
    return f"{sum(one[1] for one in counted):,} of {sum(one[0] for one in counted):,} public recipes"


def _layouts(tree: Tree) -> str:
    cells = [cell for row in _rows(tree, "docs/support.md") for cell in row]
    return f"{cells.count('yes')} cells of the tables of support"


def _served(tree: Tree) -> str:
    """Cells of the matrix that run; an older table listed them, now it says of each what becomes of it."""
    models = json.loads(tree["simcore/models/served.json"]).values()
    listed = sum(len(methods) for one in models for methods in one.get("methods", {}).values())
    ways = Counter(answer for one in models for by in one.get("answers", {}).values() for answer in by.values())
    return f"{listed + ways['yes']:,} ways to train (model x framework x method)"


BOUGHT: Final[Mapping[str, Callable[[Tree], Any]]] = {
    "simcore/models": _models, "simcore/recipes": _recipes, "simcore/frameworks": _layouts,
    "simcore/operators": _served}


def table(before: Tree, now: Tree) -> Iterator[str]:
    """Lines of the table, the largest growth first; folders that grew little share a row."""
    sides = sizes(before), sizes(now)
    size, size_now = (side[0] for side in sides)
    yield "| folder | KiB before | now | files before | now | answers before | now |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    names = sorted(size | size_now, key=lambda name: size[name] - size_now[name])
    large = [name for name in names if size_now[name] - size[name] >= LITTLE]
    for name in large:
        yield _row(f"`{name}`", sides, [name], [BOUGHT[name](tree) if name in BOUGHT else "" for tree in (before, now)])
    yield _row("all others", sides, [name for name in names if name not in large], ["", ""])
    yield _row("the wheel", sides, names, ["", ""])


def _row(title: str, sides: Sequence[tuple[Counter[str], Counter[str]]], names: Sequence[str],
         said: Sequence[str]) -> str:
    kib = [f"{sum(size[name] for name in names) / 1024:,.0f}" for size, _ in sides]
    files = [f"{sum(count[name] for name in names):,}" for _, count in sides]
    return f"| {' | '.join((title, *kib, *files, *said))} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="d501dec9", help="commit to compare with")
    print("\n".join(table(tree_of(parser.parse_args().before), tree_of(""))))  # noqa: T201


if __name__ == "__main__":
    main()
