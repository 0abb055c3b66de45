"""Arguments of Megatron-LM's training scripts, read from its sources, which are parsed and never run.

    python tests/truth/list_megatron_arguments.py MEGATRON_GIT

Comes in: a git directory of Megatron-LM. Goes out: `simcore/recipes/megatron/arguments.json`, one argument a line:
`name: [takes, default, version, field]`, without a version and a field that say nothing. `takes`: "true" or "false" for
a switch that sets its field to that, "int", "float", "text", and with "+" behind for a list; `version`: "" if both
versions below have it; `field`: where it is not spelt as the argument. Defaults that are no literals are null.
Arguments are calls of `add_argument`, and fields of dataclasses that an `ArgumentGroupFactory` turns into arguments
(`megatron/training/argument_utils.py`: a true-or-false field that is true by default becomes `--no-...` and
`--disable-...`).
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

VERSIONS = {"core 0.16.1": "core_v0.16.1", "main 2026-08-22": "d98e8a64ddf34856e74b24714e3bedb2f5a39553"}
ROOMS = ("megatron/training", "megatron/core", "megatron/post_training", "megatron/rl", "megatron/inference",
         "megatron/elastification", "examples/inference", "examples/mimo", "examples/post_training")
CLASSES_ALONE = "megatron/core"  # its scripts are no trainings
TARGET = Path(__file__).resolve().parents[2] / "simcore" / "recipes" / "megatron" / "arguments.json"
WORDS = {"int": "int", "float": "float"}


class Sources:
    """Python files of one version: classes and calls by their syntax trees."""

    def __init__(self, git, version):
        self.git, self.version = git, version
        names = self._git("ls-tree", "-r", "--name-only", version).splitlines()
        self.files = [name for name in names if name.endswith(".py") and (
            "/" not in name or name.startswith(ROOMS)) and "/test" not in name]
        texts = {name: self._git("show", f"{version}:{name}") for name in self.files}
        self.trees = {name: ast.parse(text) for name, text in texts.items()
                      if "add_argument" in text or "@dataclass" in text}
        self.classes = {node.name: node for tree in self.trees.values() for node in ast.walk(tree)
                        if isinstance(node, ast.ClassDef)}

    def _git(self, *command):
        words = ["git", f"--git-dir={self.git}", *command]
        return subprocess.run(words, capture_output=True, check=True, text=True).stdout

    def fields(self, name):
        """(field, annotation, default, metadata) of a dataclass and of those that it extends."""
        node = self.classes[name]
        for base in node.bases:
            base_name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            if base_name in self.classes:
                yield from self.fields(base_name)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield line.target.id, ast.unparse(line.annotation), *_field(line.value)


def _field(value):
    """(default, argparse metadata) of a dataclass's field."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", getattr(value.func, "attr", "")) == "field":
        words = {word.arg: word.value for word in value.keywords}
        meta = words.get("metadata")
        found = {}
        if isinstance(meta, ast.Dict):
            inner = {_literal(key): item for key, item in zip(meta.keys, meta.values, strict=True)}
            found = _dict(inner.get("argparse_meta"))
        if _literal(words.get("init")) is False:
            return None, None
        return _literal(words.get("default")), found
    return _literal(value), {}


def _dict(node):
    return {_literal(key): item for key, item in zip(node.keys, node.values, strict=True)} if isinstance(
        node, ast.Dict) else {}


def _literal(node):
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return _product(node) if isinstance(node, ast.BinOp) else None


def _product(node):
    """Value of a product or power of numbers, such as 1024 * 1024; the text of another term."""
    left, right = _literal(node.left), _literal(node.right)
    if isinstance(left, int) and isinstance(right, int) and isinstance(node.op, ast.Mult | ast.Pow):
        return left * right if isinstance(node.op, ast.Mult) else left ** right
    return ast.unparse(node)


def _takes(words, default, annotation=""):
    action = _literal(words.get("action"))
    if action in ("store_true", "store_false"):
        return "true" if action == "store_true" else "false"
    kind = WORDS.get(getattr(words.get("type"), "id", ""), "text")
    if not words and annotation:
        bare = annotation.replace("Optional[", "").replace("list[", "").replace("List[", "").strip("]").split(" | ")[0]
        kind = WORDS.get(bare, "text")
        if "bool" in bare:
            return "false" if default is True else "true"
        if annotation.lower().startswith(("list", "optional[list")):
            kind += "+"
    return kind + ("+" if _literal(words.get("nargs")) not in (None, "?") else "")


def arguments(sources):
    """{name: [field, takes, default]} of one version."""
    found = {}
    for name, tree in sources.trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if name.startswith(CLASSES_ALONE):
                continue
            if getattr(call.func, "attr", "") == "add_argument":
                _add_call(found, call)
            elif getattr(call.func, "id", "") == "ArgumentGroupFactory" and call.args:
                _add_class(found, sources, call, tree)
    return found


def _add_call(found, call):
    names = [name for name in map(_literal, call.args) if isinstance(name, str) and name.startswith("--")]
    words = {word.arg: word.value for word in call.keywords}
    if not names:
        return
    default = _literal(words.get("default"))
    field = _literal(words.get("dest")) or names[0].strip("-").replace("-", "_")
    takes = _takes(words, default)
    if takes in ("true", "false"):
        default = takes != "true" if default is None else default
    for name in names:
        found.setdefault(name, [field, takes, default])
    if getattr(words.get("action"), "attr", "") == "BooleanOptionalAction":
        for name in names:
            found[name] = [field, "true", bool(default)]
            found.setdefault(f"--no-{name[2:]}", [field, "false", bool(default)])


def _add_class(found, sources, call, tree):
    excluded = next((word.value for word in call.keywords if word.arg == "exclude"), None)
    if isinstance(excluded, ast.Name):
        lists = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)
                 and getattr(node.targets[0], "id", "") == excluded.id and isinstance(node.value, ast.List)]
        excluded = lists[0] if lists else None
    without = set(_literal(excluded) or ())
    for field, annotation, default, meta in sources.fields(call.args[0].id):
        if field in without or meta is None or annotation.startswith("ClassVar"):
            continue
        takes = _takes(meta, default, annotation) if set(meta) - {"default", "arg_names", "dest", "help"} else _takes(
            {}, default, annotation)
        dashed = field.replace("_", "-")
        names = [f"--no-{dashed}", f"--disable-{dashed}"] if takes == "false" else [f"--{dashed}"]
        for name in _literal(meta.get("arg_names")) or names:
            found.setdefault(name, [_literal(meta.get("dest")) or field, takes,
                                    _literal(meta["default"]) if "default" in meta else default])


def main(git):
    """Write the table of both versions."""
    by_version = {name: arguments(Sources(git, version)) for name, version in VERSIONS.items()}
    older, newer = by_version.values()
    rows = {}
    for name in sorted(older | newer):
        only = "" if name in older and name in newer else next(v for v, found in by_version.items() if name in found)
        field, *told = newer.get(name) or older[name]
        own = field == name.removeprefix("--").replace("-", "_")
        rows[name] = [*told, *([only] if only or not own else []), *([] if own else [field])]
    lines = ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in rows.items())
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8", newline="\n")
    print(len(rows), "arguments")


if __name__ == "__main__":
    main(*sys.argv[1:])
