"""Values of Megatron-Bridge's recipes, read from its sources, which are parsed and never run.

    python tests/truth/list_bridge_recipes.py BRIDGE_GIT

Comes in: a git directory of Megatron-Bridge. Goes out: `simcore/recipes/bridge/recipes.json`: every value that some
recipe's function sets, a line each (`values`, dotted key and value), and one recipe a line: its name, and the numbers
of its values (`has`); of an older name the present one (`name`, where a benchmark has that). `benchmark`: Bridge's
launchers change it (`simcore/recipes/bridge/launched.py`), and scale its batch. A small interpreter
(`bridge_interpreter.py`) follows assignments, calls of functions of the package itself, and conditions whose values it
knows; classes become mappings of what they are given, with `_target_`. A value that it does not know is named in `?`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

from bridge_interpreter import UNKNOWN, Found, Name, Package, Run, Thing, Unknown

TARGET = Path(__file__).resolve().parents[2] / "simcore" / "recipes" / "bridge" / "recipes.json"
GPU = re.compile(r"_\d+gpu_([a-z]+\d+)")
OF_ROWS = ("?", "name", "benchmark")
"""Keys of a row that are no values of its recipe."""


def flat(thing, prefix=""):
    """(dotted key, value) of what was set; unknown values come as UNKNOWN."""
    for name, value in thing.values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Thing):
            yield from flat(value, f"{key}.")
        elif key == "env_vars" and isinstance(value, dict):
            yield from ((f"{key}.{name}", _plain(one)) for name, one in value.items())
        else:
            yield key, _plain(value)


def _plain(value):
    if isinstance(value, Name):
        return value.name
    if isinstance(value, Found):
        return value.node.name
    try:
        json.dumps(value)
    except TypeError:
        return UNKNOWN
    return value


def recipes(package):
    """(name, module, {key: value}) of every recipe."""
    for module in package.modules.values():
        if not module.name.startswith(("megatron.bridge.recipes.", "megatron.bridge.perf_recipes.")):
            continue
        for name, node in module.defined.items():
            if isinstance(node, ast.FunctionDef) and name.endswith("_config") and not name.startswith("_"):
                gpu = GPU.search(name)
                try:
                    made = Run(package, gpu[1] if gpu else "").call(module, node, [], {})
                except (RuntimeError, RecursionError):
                    made = None
                if isinstance(made, Thing) and made.values.get("model") is not None and "train" in made.values:
                    yield name, module.name, dict(flat(made))


def aliases(package, known):
    """(older name, name) of every recipe that a module imports under another name."""
    for module in package.modules.values():
        if module.name.startswith("megatron.bridge.recipes."):
            yield from ((name, original) for name, (_, original) in module.imported.items()
                        if name != original and original in known and name not in known)


def kept(values):
    """Values by key, and names of those that are not known."""
    unknown = [key for key, value in values.items() if isinstance(value, Unknown)]
    found = {key: value for key, value in values.items() if key not in unknown}
    return found | ({"?": unknown} if unknown else {})


def table(rows):
    """The rows with values by number: `values` are pairs of a key and a value, in the order of keys."""
    pairs = sorted({(key, json.dumps(value)) for row in rows.values() if isinstance(row, dict)
                    for key, value in row.items() if key not in OF_ROWS})
    numbers = {pair: number for number, pair in enumerate(pairs)}
    lines = [f'  "{name}": {json.dumps(row if isinstance(row, str) else numbered(row, numbers))}'
             for name, row in sorted(rows.items())]
    values = [f'  ["{key}", {value}]' for key, value in pairs]
    return '{"values": [\n' + ",\n".join(values) + '\n], "recipes": {\n' + ",\n".join(lines) + "\n}}\n"


def numbered(row, numbers):
    """A row with the numbers of its values."""
    found = sorted(numbers[key, json.dumps(value)] for key, value in row.items() if key not in OF_ROWS)
    return {"has": found} | {key: row[key] for key in OF_ROWS if key in row}


def main(git):
    """Write the table; a name that both packages have is a benchmark's, and the library's recipe has an older one."""
    package = Package(git)
    library, benchmarks = {}, {}
    for name, module, values in recipes(package):
        if module.startswith("megatron.bridge.perf_recipes."):
            benchmarks[name] = kept(values) | {"benchmark": True}
        else:
            library[name] = kept(values)
    found = library | benchmarks
    older = {alias: {"name": name, **library[name]} if name in library and name in benchmarks else name
             for alias, name in aliases(package, found)}
    rows = found | older
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(table(rows), encoding="utf-8", newline="\n")
    print(len(found), "recipes,", len(rows) - len(found), "older names")


if __name__ == "__main__":
    main(*sys.argv[1:])
