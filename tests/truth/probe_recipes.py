"""Performance recipes of Megatron-Bridge, as its repository has them at each release, in our words.

    python tests/truth/probe_recipes.py BRIDGE_GIT

Comes in: a git directory of Megatron-Bridge. Goes out: `recipes/bridge.jsonl`, every preset of a language model of
every release, one a line, with the tags that have it so and every field that differs from the default.
`measured_bridge.py` looks up rows of performance tables in it. Files that hold such presets import nothing but their
own dataclass, so they are run as they are. From v0.6.0 on a recipe is a function of the whole package, and none is
read.
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

from measured_bridge import ORDER, RECIPES

FOLDER = "scripts/performance"
OTHER = ("WAN_",)
"""How names of presets of other models than language models begin."""


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


def main(git):
    """Write all presets, in the order in which they first stand in a file."""
    tags = {}
    for tag in ORDER:
        for name, fields in presets(git, tag):
            if not name.removeprefix("BASE_").lstrip("_").startswith(OTHER):
                tags.setdefault((name, json.dumps(fields)), []).append(tag)
    lines = [json.dumps({"name": name, "tags": told, "fields": json.loads(fields)}) for (name, fields), told in
             tags.items()]
    RECIPES.parent.mkdir(exist_ok=True)
    RECIPES.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    print(len(lines), "presets")


if __name__ == "__main__":
    main(*sys.argv[1:])
