"""Fields of the blocks of Megatron-Bridge's configurations, read from its sources and Megatron-LM's, never run.

    python tests/truth/list_bridge_fields.py BRIDGE_GIT MEGATRON_GIT

Comes in: git directories of Megatron-Bridge (067f987d) and Megatron-LM (d98e8a64). Goes out:
`simcore/recipes/bridge/fields.json`: of each block, such as `train`, the names that its classes and their bases have,
as fields or arguments of `__init__`, and those that a recipe of `recipes.json` sets. A block that may be one of several
classes, such as `dataset`, has those of all. `defaults`: fields of the blocks of model and step, [default] each.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "simcore" / "recipes" / "bridge" / "fields.json"
SOURCES = (("067f987d", "src/megatron/bridge"), ("d98e8a64", "megatron/core"), ("d98e8a64", "megatron/training"))
BLOCKS = {
    "train": "TrainingConfig", "validation": "ValidationConfig", "scheduler": "SchedulerConfig", "rng": "RNGConfig",
    "checkpoint": "CheckpointConfig", "logger": "LoggerConfig", "dataset": r"\w*Dataset\w*Config|DataloaderConfig",
    "dist": "DistributedInitConfig", "rerun_state_machine": "RerunStateMachineConfig", "profiling": "ProfilingConfig"}
WITH_DEFAULTS = {
    "ddp": ("DistributedDataParallelConfig",), "optimizer": ("OptimizerConfig",),
    "mixed_precision": ("MixedPrecisionConfig",), "comm_overlap": ("CommOverlapConfig",), "peft": ("LoRA", "DoRA"),
    "train": ("TrainingConfig",), "model": ("GPTModelProvider", "HybridModelProvider", "MLATransformerConfig")}
"""Classes by block, whose fields are listed with their defaults; the first class that has one says it."""


def classes(git: str, commit: str, folder: str) -> dict[str, list[ast.ClassDef]]:
    """Classes of a folder by name, with the names by which modules import them."""
    found: dict[str, list[ast.ClassDef]] = {}
    names = _git(git, "ls-tree", "-r", "--name-only", commit, folder).splitlines()
    texts = [_git(git, "show", f"{commit}:{name}") for name in names if name.endswith(".py") and re.search(
        r"config|dataset|builder|dataloader|sft|energon|/data/|provider|peft/|mixed_precision|comm_overlap", name)]
    for tree in map(ast.parse, texts):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def fields(name: str, known: dict[str, list[ast.ClassDef]], seen: set[str]) -> set[str]:
    """Names of a class and its bases; a base `MTrainX` or `MCoreX` is X of Megatron-LM."""
    if name in seen:
        return set()
    seen.add(name)
    found: set[str] = set()
    for node in known.get(name, []):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                found.add(one.target.id)
            elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
                found |= {argument.arg for argument in (*one.args.args, *one.args.kwonlyargs)} - {"self"}
                found |= {inner.attr for inner in ast.walk(one) if isinstance(inner, ast.Attribute)
                          and isinstance(inner.ctx, ast.Store)}
        for base in node.bases:
            own = getattr(base, "id", getattr(base, "attr", ""))
            found |= fields(re.sub("^(MTrain|MCore)", "", own), known, seen if own == name else seen - {own})
    return found


def defaults(name: str, known: dict[str, list[ast.ClassDef]], seen: set[str]) -> dict[str, list[Any]]:
    """Fields of a class and its bases: [default], or [] where it has none or it is no literal."""
    if name in seen:
        return {}
    seen.add(name)
    found: dict[str, list[Any]] = {}
    for node in known.get(name, []):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id not in found:
                found[one.target.id] = literal(one.value)
    for node in known.get(name, []):
        for base in node.bases:
            own = getattr(base, "id", getattr(base, "attr", ""))
            found = defaults(re.sub("^(MTrain|MCore)", "", own), known, seen) | found
    return found


def literal(node: ast.expr | None) -> list[Any]:
    try:
        return [ast.literal_eval(node)] if node is not None else []
    except ValueError:
        return []


def _git(git: str, *words: str) -> str:
    command = ["git", "-C", git, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(bridge: str, megatron: str) -> None:
    known: dict[str, list[ast.ClassDef]] = {}
    for (commit, folder), git in zip(SOURCES, (bridge, megatron, megatron), strict=True):
        for name, nodes in classes(git, commit, folder).items():
            known.setdefault(name, []).extend(nodes)
    rows = {block: sorted(set[str]().union(*(fields(name, known, set()) for name in sorted(known)
                                             if re.fullmatch(pattern, name)))) for block, pattern in BLOCKS.items()}
    table = json.loads(TARGET.with_name("recipes.json").read_text(encoding="utf-8"))
    for parts in (key.split(".") for key, _ in table["values"]):
        if parts[0] in rows and len(parts) > 1 and parts[1] not in rows[parts[0]]:
            rows[parts[0]] = sorted({*rows[parts[0]], parts[1]})
    text = ",\n".join(f"{json.dumps(block)}: {json.dumps(names)}" for block, names in rows.items())
    whole: dict[str, list[Any]] = {}
    for block, names in WITH_DEFAULTS.items():
        for name in reversed(names):
            whole |= {f"{block}.{one}": value for one, value in defaults(name, known, set()).items() if one[0] != "_"}
    rest = f'"defaults": {json.dumps(dict(sorted(whole.items())))}'
    TARGET.write_text(f"{{\n{text},\n{rest}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
