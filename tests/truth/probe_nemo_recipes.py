"""Performance recipes of NeMo RL, as each release has them, and those that an article ran, imported by rankscope.

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

from measured_nemo_rl import ARTICLE, MACHINES, RECIPES, TAGS

from simcore.errors import InputError
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe

FOLDER = "examples/configs"
ASKED = {"model": "deepseek-v3"}
"""Answer to recipes that leave the model to a guide of converting DeepSeek-V3 (`docs/guides/deepseek.md`)."""

GONE = ("policy.fsdp_offload_enabled", "policy.activation_checkpointing_enabled")
"""Switches of workers of FSDP 1, which 0.3 has no more (`nemo_rl/models/policy/lm_policy.py`): recipes say false."""


def recipes(git, tag, named):
    """(name, scenario or None, reason or None) of every performance recipe at a tag, or of those of these names."""
    with tempfile.TemporaryDirectory() as made:
        command = ["git", f"--git-dir={git}", "archive", tag, FOLDER]
        archive = subprocess.run(command, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(made, filter="data")
        performance = sorted((Path(made) / FOLDER / "recipes/llm/performance").glob("*.yaml"))
        for file in [Path(made) / FOLDER / f"{name}.yaml" for name in named] or performance:
            yield file.stem, *_imported(file)


def _imported(file):
    machine = next((told for mark, told in MACHINES.items() if mark in file.stem), "dgx-h100")
    paths = [str(one) for one in _inherited(file)]
    settings = ASKED if "deepseek" in file.stem else {}
    try:
        made = import_recipe(paths, Answers.of_options(topology=machine, settings=settings))
    except InputError as error:
        return None, _problems(error.problems, file)
    unknown = [one for one in made.unknown if not any(f"'{key}'" in one.message for key in GONE)]
    if problems := [*made.wrong, *made.refused, *unknown]:
        return None, _problems(problems, file)
    return {**{key: value for key, value in made.values.items() if key != "name"}, **settings}, None


def _problems(problems, file):
    """Reasons, without the folder that the files lay in."""
    return "; ".join(dict.fromkeys(problem.message.replace(f"{file.parent}/", "") for problem in problems))


def _inherited(file):
    """A recipe and all files that its `defaults` name, nearest first."""
    yield file
    found = re.search(r"(?m)^defaults: \"?([^\s\"]+)\"?$", file.read_text(encoding="utf-8"))
    if found:
        yield from _inherited((file.parent / found[1]).resolve())


def main(git):
    """Write one recipe a line."""
    lines = []
    for tag, named in [*((tag, ()) for tag in TAGS.values()), ARTICLE]:
        for name, scenario, reason in recipes(git, tag, named):
            told = {"scenario": scenario} if scenario else {"reason": reason}
            lines.append(json.dumps({"name": name, "tag": tag, **told}))
        print(f"{tag}: {len(lines)} so far")
    RECIPES.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
