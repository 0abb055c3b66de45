"""Performance recipes of Megatron-Bridge, as its repository has them at each release, in our words.

    python tests/truth/probe_recipes.py BRIDGE_GIT MEASURED.json

Comes in: a git directory of Megatron-Bridge, and the collection of published runs. Goes out: `recipes/bridge.jsonl`,
one recipe of one release a line: those that `measured_bridge.py` takes for rows of a performance table, with every
field that differs from the default. Files that hold such presets import nothing but their own dataclass, so they are
run as they are. From v0.6.0 on a recipe is a function of the whole package, and none is read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from measured_bridge import ORDER, RECIPES, names, nearest
from measured_cards import as_table_row

FOLDER = "scripts/performance"


def presets(git, tag):
    """(name, fields that differ from the default) of every preset at a tag."""
    with tempfile.TemporaryDirectory() as made:
        command = ["git", f"--git-dir={git}", "archive", tag, f"{FOLDER}/configs", f"{FOLDER}/utils"]
        archive = subprocess.run(command, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(made, filter="data")
        yield from _python(Path(made) / FOLDER, tag)


def _python(root, tag):
    sys.path.insert(0, str(root))
    for name in [name for name in sys.modules if name.partition(".")[0] == "utils"]:
        del sys.modules[name]  # each tag brings its own
    try:
        helper = "utils.utils" if (root / "utils/utils.py").exists() else "utils.helpers"
        kind = importlib.import_module(helper).WorkloadBaseConfig
        for file in sorted(root.glob("configs/*/*workload_base_configs.py")):
            spec = importlib.util.spec_from_file_location(f"presets_{tag}_{file.stem}", file)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            yield from ((name, _fields(value, kind())) for name, value in vars(module).items() if
                        isinstance(value, kind))
    finally:
        sys.path.remove(str(root))


def _fields(value, default):
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)
            if getattr(value, field.name) != getattr(default, field.name)}


def main(git, measured):
    """Write the recipes that rows name."""
    runs = [as_table_row(run) or run for run in json.loads(Path(measured).read_text(encoding="utf-8"))
            if run["group"] == "mbridge-perf-summary" or as_table_row(run)]
    recipes = [{"tag": tag, "name": name, "fields": fields} for tag in ORDER for name, fields in presets(git, tag)]
    lines = sorted({json.dumps(found) for run in runs if names(run) and (found := nearest(run, recipes))})
    RECIPES.parent.mkdir(exist_ok=True)
    RECIPES.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(len(lines), "recipes")


if __name__ == "__main__":
    main(*sys.argv[1:])
