"""Keys of the recipes of TRL, LLaMA-Factory and axolotl, read from their sources, which are parsed and never run.

    python tests/truth/list_trainer_fields.py GIT_OF_TRL GIT_OF_LLAMAFACTORY GIT_OF_AXOLOTL TRANSFORMERS...

Comes in: git directories of the three at the commits below, folders of transformers 4.46.3 and 5.23.0. TRL's
recipes have the arguments of the last one too, those of LLaMA-Factory those of both. Goes out:
`simcore/recipes/huggingface/fields.json`, names by format: annotated fields of the classes that hold arguments, also of
axolotl's plugins.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

COMMITS = ("f2cd57710", "ff6d4d12", "067b021c")
TARGET = Path(__file__).resolve().parents[2] / "simcore" / "recipes" / "huggingface" / "fields.json"


def fields(text):
    """Names of annotated fields of all classes in a source."""
    return {line.target.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
            for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)}


def git(directory, *words):
    command = ["git", f"--git-dir={directory}", *words]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def of(directory, commit, *rooms):
    """Fields in the Python files below `rooms` (files or folders; `*args.py` below integrations)."""
    names = git(directory, "ls-tree", "-r", "--name-only", commit, *rooms).splitlines()
    return set().union(*(fields(git(directory, "show", f"{commit}:{name}")) for name in names if name.endswith(".py")
                         and ("integrations/" not in name or name.endswith("args.py"))))


def main(trl, factory, axolotl, *transformers):
    def trainer(folders, *names):
        return set().union(*(fields((Path(folder) / name).read_text(encoding="utf-8")) for folder in folders
                             for name in names))

    found = {
        "trl": trainer(transformers[-1:], "training_args.py") | of(
            trl, COMMITS[0], "trl/trainer/sft_config.py", "trl/trainer/base_config.py", "trl/trainer/model_config.py",
            "trl/scripts/utils.py"),
        "llamafactory": trainer(transformers, "training_args.py", "training_args_seq2seq.py") | of(
            factory, COMMITS[1], "src/llamafactory/hparams"),
        "axolotl": of(axolotl, COMMITS[2], "src/axolotl/utils/schemas", "src/axolotl/integrations")}
    rows = [f'{json.dumps(name)}: {json.dumps(sorted(one for one in keys if not one.startswith("_")))}'
            for name, keys in found.items()]
    TARGET.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
