"""Table of what becomes of recipes of other tools, fetched beside this checkout and never committed.

    python tests/recipes/upstream.py FOLDER...                       # folders or files; every .yaml, .yml, .json, .toml
    python tests/recipes/upstream.py --list refused FOLDER           # files of one outcome, with the first reason
    python tests/recipes/upstream.py --why FOLDER                    # reasons, most frequent first
    python tests/recipes/upstream.py --loose FOLDER                  # without what is unknown or not modelled

DeepSpeed's JSON and Hydra's YAML that a recipe names are given beside it if they are found. A recipe is imported
without any answer, and again with answers to what it has left open, then its layout is checked by the engine and the
memory of a step is simulated. Outcomes: `answered`; `answered after one question`; `refused` by name (by the
importer, the framework or the engine); `family` (a model that is not known); `unknown key`; `wrong` (a value that the
format does not take); `no recipe` (no format recognises the file); `traceback`.
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcore.errors import InputError, RankscopeError
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.recipe_file import read_files
from simcore.recipes.registry import format_of
from simcore.simulate import check, simulate

OUTCOMES: Final = ("answered", "answered after one question", "refused", "family", "unknown key", "wrong", "no recipe",
                   "traceback")
SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml", ".sh")
OF_SCRIPTS: Final = {"model": "llama-3.2-3b", "training.micro_batch_size": 2, "training.precision.compute": "bf16",
                     "rl.critic.model": "llama-3.2-3b", "rl.reward.model": "llama-3.2-3b",
                     "model.overrides.vocab_size": 131072, "training.images": 1, "training.image_height": 448}
"""Answers by `--set` to what files about GPUs leave to the training script, or recipes to files of a tokenizer."""
UNKNOWN_MODEL: Final = ("unknown model", "model configuration: model_type")
OTHER_LAYERS: Final = ("in Megatron's layers", "the provider ", "the model of this recipe (no class)",
                       "the model of this recipe (hf)")
"""Parts of messages about families that a framework's own layers do not have."""
NEWER: Final = {"vr200": "gb300-nvl72", "r100": "gb300-nvl72"}
"""Machine that stands for one that is not known, by the word of a recipe's name."""


MACHINES: Final = ("dgx-h100", "gb200-nvl72")
"""Answers to which machine: the second where the GPUs of the first lack what the recipe computes in."""
TOO_OLD: Final = "device compute capability"


def answers_to(imported: Imported, gpus: int, machine: str = MACHINES[0]) -> Answers:
    """Answers to the questions of a recipe, and to no other."""
    asked = {question.key for question in imported.questions}
    meant = {question.key: question.option.partition("such as ")[2] for question in imported.questions
             if question.key.endswith("model") and "such as " in question.option}
    name = str(imported.values.get("name", ""))
    machine = next((stands for word, stands in NEWER.items() if f"gpu_{word}" in name), machine)
    return Answers.of_options(gpus if any(key.startswith("mesh") for key in asked) else None,
                              4096 if "training.seq_len" in asked else None,
                              machine if "topology" in asked else "",
                              {**{key: value for key, value in OF_SCRIPTS.items() if key in asked}, **meant})


def outcome(path: Path, gpus: int, *, loose: bool = False) -> tuple[str, str, list[str]]:
    """Format of a file ("-": none), what becomes of it, and the reasons."""
    try:
        found = format_of(read_files([str(path)]))
        if found is None:
            return "-", "no recipe", []
        return (found[0].name, *_outcome(path, gpus, loose=loose))
    except InputError as error:
        return "-", "no recipe", [problem.message for problem in error.problems]
    except Exception:  # noqa: BLE001 - a traceback is what is counted
        return "-", "traceback", [traceback.format_exc().splitlines()[-1]]


def _outcome(path: Path, gpus: int, *, loose: bool) -> tuple[str, list[str]]:
    paths = [str(path), *named_files(path)]
    first = import_recipe(paths, Answers(), loose=loose)
    found = ("refused", [""])
    for machine in MACHINES if first.questions else MACHINES[:1]:
        imported = answered(paths, first, gpus, machine, loose=loose) if first.questions else first
        found = _judged(first, imported)
        if not any(TOO_OLD in reason for reason in found[1]):
            break
    return found


def _judged(first: Imported, imported: Imported) -> tuple[str, list[str]]:
    if imported.questions or (imported.wrong and not any(part in one.message for part in OTHER_LAYERS
                                                         for one in imported.wrong)):
        return "wrong", [*map(str, imported.questions), *(problem.message for problem in imported.wrong)]
    try:
        scenario = parse_scenario(imported.document())
        found = check(scenario)
        if not found.problems:
            found = simulate(scenario, timed=False)  # a layer that is placed may still have no operators
        messages = [problem.message for problem in found.problems]
    except RankscopeError as error:
        messages = [problem.message for problem in error.problems]
    said = [*messages, *(problem.message for problem in (*imported.wrong, *imported.refused))]
    if any(message.startswith(UNKNOWN_MODEL) or any(part in message for part in OTHER_LAYERS) for message in said):
        return "family", said
    if imported.unknown:
        return "unknown key", [problem.message for problem in imported.unknown]
    if imported.refused or messages:
        return "refused", [*(problem.message for problem in imported.refused), *messages]
    return ("answered after one question" if first.questions else "answered"), []


def named_files(path: Path) -> list[str]:
    """DeepSpeed's JSON that a recipe, or accelerate's YAML, names from a folder that it lies in; Hydra's of a script.

    The latter lies in a folder `config` of one of those, or of an example in it.
    """
    file = read_files([str(path)])[0]
    document = file.mapping()
    inner = document.data.get("deepspeed_config") if document is not None else None
    name = None if document is None else document.data.get("deepspeed") or (
        inner.get("deepspeed_config_file") if isinstance(inner, dict) else None)
    hydras = re.search(r"--config-name[= ]['\"]?(\w+)", file.text) if document is None else None
    if hydras is not None:
        name = f"config/{hydras[1]}.yaml"
        found = (one for parent in path.absolute().parents[:3]
                 for one in (parent / name, *sorted(parent.glob(f"examples/*/{name}"))))
        return [str(one) for one in found if one.is_file()][:1]
    if not isinstance(name, str):
        return []
    found = (parent / name for parent in path.absolute().parents)
    return [str(one) for one in found if one.is_file()][:1]


def answered(paths: list[str], first: Imported, gpus: int, machine: str, *, loose: bool = False) -> Imported:
    """Import with the least number of GPUs, from `gpus` on by doubling, that the recipe's degrees divide.

    Where its batch is too small for so many GPUs, the largest number below by halving.
    """
    imported = _answered(paths, first, gpus, machine, loose=loose)
    while gpus > 1 and _too_many(imported):
        gpus //= 2
        imported = _answered(paths, first, gpus, machine, loose=loose)
    while gpus <= 4096:
        imported = _answered(paths, first, gpus, machine, loose=loose)
        try:
            if not any("GPUs are no multiple" in problem.message for problem in imported.wrong):
                parse_scenario(imported.document())
                if not _too_few(imported):
                    return imported
        except InputError:
            return imported
        gpus *= 2
    return imported


def _answered(paths: list[str], first: Imported, gpus: int, machine: str, *, loose: bool) -> Imported:
    answers = answers_to(first, gpus, machine)
    made = import_recipe(paths, answers, loose=loose)
    if made.questions:  # the model that an answer gives may ask for more, such as images
        answers = answers_to(replace(first, questions=(*first.questions, *made.questions)), gpus, machine)
        made = import_recipe(paths, answers, loose=loose)
    return made.with_settings(answers.settings)


def _too_many(imported: Imported) -> bool:
    """True if a step has fewer sequences than the ranks' microbatches."""
    training, mesh = imported.values.get("training", {}), imported.values.get("mesh", {})
    ranks = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1)
    return bool(training.get("global_batch_size", 0) % (ranks * training.get("micro_batch_size", 1) or 1)) and ranks > 1


def _too_few(imported: Imported) -> bool:
    """True if the framework asks for more ranks, such as those of expert parallelism."""
    mesh = imported.values.get("mesh", {})
    ranks = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1) * mesh.get("cp", 1) * mesh.get("tp", 1)
    experts = mesh.get("ep", 1)
    if experts > 1 and str(imported.values.get("framework", "")).startswith("megatron"):
        experts *= mesh.get("etp", mesh.get("tp", 1))  # each expert is cut as the rest is, unless told otherwise
    return bool(ranks % experts)


def _files(names: list[str]) -> Iterator[Path]:
    for name in map(Path, names):
        yield from ([name] if name.is_file() else sorted(one for one in name.rglob("*") if one.suffix in SUFFIXES))


def main() -> int:
    """Prints the table; exit code 1 if a recipe ends in a traceback."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--list", choices=OUTCOMES, default=None)
    parser.add_argument("--loose", action="store_true")
    parser.add_argument("--why", action="store_true")
    asked = parser.parse_args()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[tuple[str, str]] = Counter()
    for path in _files(asked.folders):
        name, what, why = outcome(path, asked.gpus, loose=asked.loose)
        table[name][what] += 1
        reasons.update((what, reason[:150]) for reason in {*why})
        if what == asked.list:
            sys.stdout.write(f"{path}: {'; '.join(why)[:300]}\n")
    for name, counts in sorted(table.items()):
        sys.stdout.write(f"{name:12} {sum(counts.values()):5}  " + ", ".join(
            f"{what} {counts[what]}" for what in OUTCOMES if counts[what]) + "\n")
    if asked.why:
        sys.stdout.write("".join(f"{count:5} {what}: {reason}\n" for (what, reason), count in reasons.most_common()))
    return int(any(counts["traceback"] for counts in table.values()))


if __name__ == "__main__":
    sys.exit(main())
