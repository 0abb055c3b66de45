"""Performance recipes of NeMo RL, as each release has them, imported by rankscope.

    python tests/truth/probe_nemo_recipes.py NEMO_RL_GIT

Comes in: a git directory of NeMo RL. Goes out: `recipes/nemo_rl.jsonl`, every file of a release's folder
`examples/configs/recipes/llm/performance` by its name: the scenario that `rankscope import` makes of it and of the
files that it inherits from, or why it makes none. `measured_nemo_rl.py` looks up rows of the performance summary there.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from measured_nemo_rl import MACHINES, RECIPES, TAGS

from simcore.errors import InputError
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe

FOLDER = "examples/configs"
ASKED = {"model": "deepseek-v3"}
"""Answer to recipes that leave the model to a guide of converting DeepSeek-V3 (`docs/guides/deepseek.md`)."""


def recipes(git, tag):
    """(name, scenario or None, reason or None) of every performance recipe at a tag."""
    with tempfile.TemporaryDirectory() as made:
        command = ["git", f"--git-dir={git}", "archive", tag, FOLDER]
        archive = subprocess.run(command, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(made, filter="data")
        for file in sorted((Path(made) / FOLDER / "recipes/llm/performance").glob("*.yaml")):
            yield file.stem, *_imported(file)


def _imported(file):
    machine = next(told for mark, told in MACHINES.items() if mark in file.stem)
    paths = [str(one) for one in _inherited(file)]
    settings = ASKED if "deepseek" in file.stem else {}
    try:
        made = import_recipe(paths, Answers.of_options(topology=machine, settings=settings))
    except InputError as error:
        return None, _problems(error.problems, file)
    if problems := [*made.wrong, *made.refused, *made.unknown]:
        return None, _problems(problems, file)
    return {**{key: value for key, value in made.values.items() if key != "name"}, **settings}, None


def _problems(problems, file):
    """Reasons, without the folder that the files lay in."""
    return "; ".join(dict.fromkeys(problem.message.replace(f"{file.parent}/", "") for problem in problems))


def _inherited(file):
    """A recipe and all files that its `defaults` name, nearest first."""
    yield file
    found = re.search(r"(?m)^defaults: (\S+)$", file.read_text(encoding="utf-8"))
    if found:
        yield from _inherited((file.parent / found[1]).resolve())


def main(git):
    """Write one recipe a line."""
    lines = []
    for tag in TAGS.values():
        for name, scenario, reason in recipes(git, tag):
            told = {"scenario": scenario} if scenario else {"reason": reason}
            lines.append(json.dumps({"name": name, "tag": tag, **told}))
        print(f"{tag}: {len(lines)} so far")
    RECIPES.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
