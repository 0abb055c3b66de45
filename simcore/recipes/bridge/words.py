"""Words behind the program of a launch of Bridge's: overrides `key=value`, and the launchers' options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile, zip_longest
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import parse_value
from simcore.recipes.answers import Answer
from simcore.recipes.bridge.options import (
    EXPERIMENT,
    FLAGS,
    MANY,
    PERFORMANCE,
    REFUSED,
    SWITCHES,
    TEXTS,
    VARIABLES,
    Launcher,
    launcher_of,
    switched,
    variables_of,
)
from simcore.recipes.bridge.rows import ROWS
from simcore.recipes.bridge.selection import TASKS
from simcore.recipes.imported import Left
from simcore.recipes.launch.launch_of import MEMORY
from simcore.recipes.rows import Idle
from simcore.recipes.shell.pieces import Word

__all__ = ["Asked", "Override", "asked_of", "program_of"]

Override = tuple[str, Any, str]
"""Dotted key, value and place."""
_OVERRIDE: Final = re.compile(r"\+{0,2}([a-z_][a-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)=(.*)", re.DOTALL)
_DETERMINISTIC: Final[Mapping[str, Any]] = {
    "model.deterministic_mode": True, "model.cross_entropy_loss_fusion": False,
    "env_vars.CUBLAS_WORKSPACE_CONFIG": ":4096:8", "env_vars.NCCL_ALGO": "Ring",
    "env_vars.NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0}
"""Values that --deterministic sets (recipes/utils/determinism_utils.py), beside comm_overlap.tp_comm_overlap."""
_NULL_BLOCKS: Final = ("comm_overlap", "peft", "profiling")
"""Blocks that are null unless a recipe makes them (training/config.py ConfigContainer)."""
_MAY_BE_BARE: Final = ("-et", "--expert_tensor_parallel_size")
"""Options of the performance launcher whose value is None where they have none."""
_LISTED: Final = ("deepseek", "kimi", "moonlight", "glm", "ernie", "exaone", "ling")
"""Beginnings of names of recipes whose models list which layers have experts."""
_SAMPLES: Final = ("mock", "megatron-indexed")
"""Data sets of pretraining, which keep the recipe's length (recipes/utils/dataset_utils.py)."""


@dataclass
class Asked:
    """Demands of the words of a launch: `overrides` in the order in which they are applied, and keys without effect.

    `base`: what is set before them (--deterministic); `gpus`: GPUs that the launcher's own options say;
    `unknown`: problems of values that are not known, by their keys; `environment`: variables that options set, with
    their places.
    """

    launcher: Launcher
    base: list[Override] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    gpus: Answer | None = None
    unknown: dict[str, Problem] = field(default_factory=dict)
    environment: list[tuple[str, str, str]] = field(default_factory=list)


def program_of(words: Sequence[Word], first: int) -> int:
    """Number of the first word that is Bridge's: behind the program, or `first`, the name, where no program is."""
    for number, word in enumerate(words[:first]):
        is_program = word.text.endswith((".py", ".sh")) and "torch/distributed" not in word.text
        if is_program or (number and words[number - 1].text == "-m" and not word.text.startswith("torch.distributed")):
            return number + 1
    return first


def asked_of(words: Sequence[Word], start: int, path: str, name: str, values: Mapping[str, Any]) -> Asked:
    """Reads the words from `start` on. InputError, at its line, for one that the launcher does not take, or we do not.

    `name`, `values`: the recipe that they name.
    """
    launcher = launcher_of(words[start - 1].text if start else "")
    options = {word.text.partition("=")[0] for word in words}
    if launcher is EXPERIMENT and options & {"-mr", "--model_recipe_name"}:
        launcher = PERFORMANCE  # scripts/performance/setup_experiment.py, which has another one's name
    if launcher.rebuilds and words[start - 1].text.endswith("run_recipe.py"):
        raise InputError(Problem(f"{path}:{words[start - 1].line}", f"not yet: {words[start - 1].text}: "
                                                                    f"{REFUSED['--use_recipes']}"))
    return _Words(words, path, name, values, Asked(launcher)).read(start)


@dataclass
class _Words:
    words: Sequence[Word]
    path: str
    name: str
    values: Mapping[str, Any]
    asked: Asked
    options: list[Override] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    switches: dict[str, tuple[str, str]] = field(default_factory=dict)

    def read(self, start: int) -> Asked:
        number, trailing = start, list[Override]()
        while number < len(self.words):
            word = self.words[number]
            where, text = f"{self.path}:{word.line}", word.text
            override = _OVERRIDE.fullmatch(text)
            if override and text[:2] != "++" and text[0] == "+" and self.values.get(override[1]) is not None:
                raise InputError(Problem(where, f"{text.partition('=')[0]}: the recipe has this key, which Hydra does "
                                                f"not add again: give {override[1]}="))
            if override:
                self._expect_node(override[1], where, [key for key, _, _ in trailing])
                if word.unknown:
                    self._leave_open(override[1], override[1], where, word.unknown)
                read = override[2] if word.unknown else parse_value(override[2], where)
                trailing.append((override[1], read, where))
            elif text.startswith("-"):
                number += self._option(number, where)
            elif word.unknown or text not in ("", self.name):  # "$@" of a script without arguments is empty
                self._refuse_word(word, where)
            number += 1
        if self.asked.launcher.rebuilds:  # Hydra's before argparse's (scripts/performance/run_script.py)
            given, gpu = {key for key, _, _ in trailing}, self._gpu()
            trailing += self._switched(trailing, gpu)
            self.asked.overrides = [*trailing, *self.options]
            values = {**self.values, **{key: value for key, value, _ in self.asked.overrides}}
            asked = {name: f"{where} {name}" for name, (_, where) in self.switches.items()}
            asked |= {key: where for key, _, where in self.options}
            self.asked.overrides += [one for one in variables_of(asked, values, self.values, self.name, gpu)
                                     if one[0] not in given and one[1] != self.values.get(one[0])]
        else:
            self.asked.overrides = [*self.options, *trailing]
        self._leave_overridden()
        return self.asked

    def _expect_node(self, key: str, where: str, before: Sequence[str]) -> None:
        """Raises InputError for a key below a block that the recipe has as null; `before`: keys of earlier words."""
        node, made = key.partition(".")[0], {*before, key}
        if node in _NULL_BLOCKS and not {node, f"{node}._target_"} & made and not any(
                one.startswith(f"{node}.") for one in self.values):
            raise InputError(Problem(where, f"{key}: Could not override '{key}': the recipe's {node} is null, and a "
                                            "word makes no block of its class (Hydra; Megatron-Bridge 067f987d "
                                            "training/utils/omegaconf_utils.py:180)"))

    def _gpu(self) -> str:
        """GPU that the launch names, in small letters; "" for none."""
        return next((two.text if two and one.text in ("-g", "--gpu") else one.text.partition("=")[2]
                     for one, two in zip_longest(self.words, self.words[1:])
                     if one.text in ("-g", "--gpu") or one.text.startswith(("-g=", "--gpu="))), "").lower()

    def _switched(self, before: Sequence[Override], gpu: str) -> list[Override]:
        """Keys that switches of the performance launcher set, on the recipe's values and the overrides before them."""
        values = {**self.values, **{key: value for key, value, _ in before}}
        found, idle = switched(self.switches, values, gpu)
        self.asked.left += [Left("no effect", where, option, self.switches[option][0], str(why))
                            for option, why, where in idle]
        return found

    def _leave_open(self, name: str, key: str, where: str, reason: str) -> None:
        """Tells that a value is not known; InputError unless rows say that nothing may depend on its key."""
        problem = Problem(where, f"{name}: its value depends on {reason}")
        if not any(fnmatchcase(key, pattern) for row in ROWS if isinstance(row, Idle) for pattern in row.keys):
            raise InputError(problem)
        self.asked.unknown[key] = problem

    def _leave_overridden(self) -> None:
        """Lists what a later override of the same key goes before."""
        last: dict[str, Override] = {}
        for one in self.asked.overrides:
            if one[0] in last:
                key, value, where = last[one[0]]
                self.asked.left.append(Left("no effect", where, key, shorten(value), f"{one[2]} goes before it"))
            last[one[0]] = one

    def _refuse_word(self, word: Word, where: str) -> None:
        if word.unknown:
            raise InputError(Problem(where, f"{word.text}: what it says depends on {word.unknown}"))
        if word.text.startswith("~"):
            raise InputError(Problem(where, f"not yet: {word.text}: keys that are taken out"))
        raise InputError(Problem(where, f"expected KEY=VALUE, got {word.text!r}"))

    def _option(self, number: int, where: str) -> int:
        """Reads one option; returns the number of further words that it takes."""
        option, has_value, value = self.words[number].text.partition("=")
        launcher = self.asked.launcher
        keys = launcher.keys
        self._expect_known(option, where)
        if option in FLAGS:
            self._flag(option, where)
            return 0
        if option in MANY and launcher.rebuilds:
            return self._many(number, option, where)
        is_last = number + 1 == len(self.words) or self.words[number + 1].text.startswith("-")
        if launcher.rebuilds and option in _MAY_BE_BARE and not has_value and is_last:
            self.options.append((keys[option], None, f"{where} {option}"))
            return 0
        if not has_value and number + 1 == len(self.words):
            raise InputError(Problem(where, f"{option}: has no value"))
        given = self.words[number if has_value else number + 1]
        value, unknown = value if has_value else given.text, given.unknown
        if not has_value and re.match(r"-(?![0-9])", value) and not unknown:
            raise InputError(Problem(where, f"{option}: has no value"))
        if launcher.rebuilds and option in {*SWITCHES, *VARIABLES}:
            self._own(option, value, unknown, where)
        elif option in keys and unknown:
            self._leave_open(option, keys[option], where, unknown)
            self.options.append((keys[option], value, where))
        elif option in keys:
            self._set(option, keys[option], value, where)
        else:
            self._idle(option, value, unknown, where)
        return 0 if has_value else 1

    def _expect_known(self, option: str, where: str) -> None:
        """Raises InputError for an option that the launcher does not have, or that is refused."""
        launcher = self.asked.launcher
        own = {*SWITCHES, *REFUSED, *VARIABLES} if launcher.rebuilds else set[str]()
        known = {*launcher.keys, *launcher.idle, *launcher.unmodelled, *own, "--mode", "--dataset",
                 "--deterministic", "--model"}
        if option not in known:
            near = difflib.get_close_matches(option, sorted(known), 1, 0.8)
            raise InputError(Problem(where, f"{option}: no option of Bridge's launcher that is read"
                                            + (f"; did you mean {near[0]!r}?" if near else "")))
        if option in own & {*REFUSED}:
            raise InputError(Problem(where, f"{option}: not yet: {REFUSED[option]}"))

    def _set(self, option: str, key: str, value: str, where: str) -> None:
        is_none = value == "None" and self.asked.launcher.rebuilds and key.startswith("model.virtual")
        if key not in TEXTS and not is_none and not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise InputError(Problem(where, f"{option}: expected a whole number, got {value!r}"))
        if option == "--num_layers" and not self.name.startswith(_LISTED):
            raise InputError(Problem(where, "--num_layers: Bridge stops: 'int' object has no attribute 'count' "
                                            "(scripts/performance/utils/overrides.py:594): give model.num_layers=N"))
        read = None if is_none else value if key in TEXTS else int(value)
        self.options.append((key, read, f"{where} {option}"))
        if self.asked.launcher.rebuilds and key == "model.tensor_model_parallel_size":
            # scripts/performance/utils/overrides.py, set_user_overrides: -tp sets both
            self.options.append(("model.sequence_parallel", int(value) > 1, f"{where} {option}"))

    def _flag(self, option: str, where: str) -> None:
        if option == "--deterministic":
            self.asked.base += [(key, value, where) for key, value in _DETERMINISTIC.items()]
            if any(key.startswith("comm_overlap.") for key in self.values):
                self.asked.base.append(("comm_overlap.tp_comm_overlap", False, where))
            return
        self._leave(option, "", where)

    def _idle(self, option: str, value: str, unknown: str, where: str) -> None:
        why = self.asked.launcher.idle.get(option, "")
        if option in ("--mode", "--dataset", "--model", "--nodes", "--gpus-per-node", "--gpus_per_node", "-ng",
                      "--num_gpus") and unknown:
            raise InputError(Problem(where, f"{option}: its value depends on {unknown}"))
        if option == "--model" and any(self.name in word.text for word in self.words):
            raise InputError(Problem(where, f"{option}: a recipe is named already: {self.name}"))
        if option == "--model":
            why = "names the recipe"
        if option == "--mode":
            why = self._mode(value, where)
        if option == "--dataset":
            if value not in _SAMPLES or "_pretrain" not in self.name:
                raise InputError(Problem(where, f"not yet: --dataset {value}: a data set with settings of its own, "
                                                "such as packs (recipes/utils/dataset_utils.py), in place of the "
                                                "recipe's: give its dataset.* keys"))
            why = "which samples are read"
        if option in ("--nodes", "--gpus-per-node", "--gpus_per_node", "-ng", "--num_gpus"):
            self._count(option, value, where)
        self._leave(option, value, where, why)

    def _leave(self, option: str, value: str, where: str, why: str = "") -> None:
        """Lists an option that gives the scenario nothing; `why`: the reason, where no table has it."""
        small = self.asked.launcher.unmodelled.get(option, "")
        says_no = value == "-1" or value.lower() in ("false", "0", "f", "no", "n")
        kind: Any = "not modelled" if option in ("--step-func", "--step_func") or (small and not says_no) else \
            "no effect"
        reason = "it asks for nothing" if small and says_no else small or why
        self.asked.left.append(Left(kind, where, option, value,
                                    reason or self.asked.launcher.idle.get(option, "")))

    def _many(self, number: int, option: str, where: str) -> int:
        """Lists an option whose values are all words up to the next option; returns their number."""
        values = list(takewhile(lambda word: not word.text.startswith("-"), self.words[number + 1:]))
        self._leave(option, " ".join(word.text for word in values), where)
        return len(values)

    def _own(self, option: str, value: str, unknown: str, where: str) -> None:
        """Reads an option of the performance launcher alone."""
        if unknown and (option in SWITCHES or any(name in value for name in MEMORY)):
            raise InputError(Problem(where, f"{option}: its value depends on {unknown}"))
        if option in SWITCHES:
            self.switches[SWITCHES[option]] = value, where
            return
        for part in [value] if option in ("-E", "--env") else value.split(","):
            name, has_value, text = part.partition("=")
            if not (has_value and name.isidentifier()):
                raise InputError(Problem(where, f"{option}: expected KEY=VALUE, got {part!r}"))
            self.asked.environment.append((name, text, f"{where} {option}"))

    def _mode(self, mode: str, where: str) -> str:
        """Reason why a mode changes nothing; InputError for one that contradicts the recipe, or changes adapters."""
        if mode not in TASKS:
            raise InputError(Problem(where, f"--mode: expected {', '.join(TASKS)}, got {mode!r}"))
        named = next((task for task in ("pretrain", "sft", "peft") if f"_{task}_" in self.name), None)
        if named not in (None, TASKS[mode]):
            raise InputError(Problem(where, f"--mode {mode} contradicts the recipe {self.name}"))
        adapters = str(self.values.get("peft._target_", "")).rpartition(".")[2].lower()
        if TASKS[mode] == "peft" and adapters and adapters != mode:
            raise InputError(Problem(where, f"not yet: --mode {mode}: the recipe's adapters are {adapters}"))
        return "as the recipe has it"

    def _count(self, option: str, value: str, where: str) -> None:
        if not re.fullmatch(r"[1-9][0-9]{0,6}", value):
            raise InputError(Problem(where, f"{option}: expected a whole number, got {value!r}"))
        self.sizes[option.replace("_", "-") if option.startswith("--gpus") else option] = int(value)
        each = self.sizes.get("--gpus-per-node")
        whole = self.sizes.get("-ng", self.sizes.get("--num_gpus"))
        total = whole if self.asked.launcher.rebuilds else each and each * self.sizes.get("--nodes", 1)
        if total:
            self.asked.gpus = Answer(total, f"{where} {option}")
