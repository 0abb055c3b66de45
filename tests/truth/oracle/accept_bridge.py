"""Megatron-Bridge's own names for the overrides of a launch: Hydra's grammar, and the fields of its sources.

Its package needs a GPU's libraries, so the sources are parsed: `BRIDGE`, a git directory of Megatron-Bridge at
067f987d, and `MEGATRON`, the folder of Megatron-LM d98e8a64, whose classes its own inherit from. A block of the
configuration has the fields of the classes that recipes put there, and of all that these inherit from.
"""

from __future__ import annotations

import ast
import io
import os
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

COMMIT = "067f987d"
BLOCKS = {"model": ("GPTModelProvider", "HybridModelProvider", "MLAModelProvider"), "train": ("TrainingConfig",),
          "ddp": ("DistributedDataParallelConfig",), "optimizer": ("OptimizerConfig",), "peft": ("LoRA", "DoRA"),
          "dataset": ("GPTDatasetConfig", "GPTSFTDatasetConfig", "HFDatasetConfig"), "tokenizer": ("TokenizerConfig",),
          "mixed_precision": ("MixedPrecisionConfig",), "comm_overlap": ("CommOverlapConfig",),
          "offline_packing_specs": ("PackedSequenceSpecs",)}
KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str, "list": list, "List": list}


def load() -> None:
    """Parses the sources, once for all cases."""
    classes()
    functions()


@cache
def trees() -> tuple[ast.Module, ...]:
    """Modules of Bridge and of the core that it runs on."""
    command = ["git", f"--git-dir={os.environ['BRIDGE']}", "archive", COMMIT, "src/megatron/bridge"]
    found = []
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)) as tar:
        for one in tar:
            held = tar.extractfile(one) if one.isfile() and one.name.endswith(".py") else None
            found += [ast.parse(held.read())] if held else []
    core = sorted(Path(os.environ["MEGATRON"], "megatron").rglob("*.py"))
    return (*found, *(ast.parse(path.read_text(encoding="utf-8")) for path in core))


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Classes by name; several modules may have one of a name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def functions() -> frozenset[str]:
    """Names of recipes, and the older ones under which they are imported."""
    nodes = [node for tree in trees() for node in ast.walk(tree)]
    return frozenset({node.name for node in nodes if isinstance(node, ast.FunctionDef)}
                     | {node.asname for node in nodes if isinstance(node, ast.alias) and node.asname})


def fields(name: str, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """(field, annotation) of a class and of those that it inherits from."""
    for node in classes().get(name, ()):
        for base in node.bases:
            inner = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            if inner and inner not in seen:
                yield from fields(inner, seen | {name})
        yield from ((line.target.id, ast.unparse(line.annotation)) for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name))


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts of a launch; ValueError for a recipe or a key that Bridge has not, or a value of another kind."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from torch.distributed.run import get_args_parser

    text = (folder / files[0]).read_text(encoding="utf-8").replace("\\\n", " ")
    words = next(shlex.split(line) for line in text.splitlines() if line.startswith("torchrun "))
    launched = get_args_parser().parse_args(words[1:])
    ranks = int(str(launched.nnodes).partition(":")[0]) * int(launched.nproc_per_node)
    option, recipe, *rest = launched.training_script_args
    if option != "--recipe" or recipe not in functions():
        raise ValueError(f"Bridge has no recipe {recipe}")
    parsed = OverridesParser.create().parse_overrides(rest)
    for one in parsed:
        _check(str(one.key_or_group), one.value())
    return {"recipe": recipe, "ranks": ranks, "overrides": len(parsed)}


def _check(key: str, value: object) -> None:
    block, _, rest = key.partition(".")
    if block == "env_vars" or (block == "mixed_precision" and not rest):
        known = {line for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                 for line in [node.name]}
        if not rest and value not in known:
            raise ValueError(f"Bridge has no mixed precision {value}")
        return
    for inner in rest.split(".")[:-1]:
        if inner not in {name for owner in BLOCKS[block] for name, _ in fields(owner)}:
            raise ValueError(f"{block} has no {inner}")
        block = inner
    name = rest.rpartition(".")[2]
    said = [annotation for owner in BLOCKS.get(block, ()) for field, annotation in fields(owner) if field == name]
    if not said:
        raise ValueError(f"Bridge has no {key}")
    kinds = [KINDS[word] for words in said for word in KINDS if word in _words(words)]
    plain = value is None or (isinstance(value, str) and any("dtype" in words or "Literal" in words for words in said))
    if not plain and kinds and not any(isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
                                       for kind in kinds):
        raise ValueError(f"{key} is a {' or a '.join(sorted({*said}))}, not {value!r}")


def _words(annotation: str) -> set[str]:
    """Names in an annotation."""
    return {node.id for node in ast.walk(ast.parse(annotation.strip("'\""))) if isinstance(node, ast.Name)}
