"""Keys that are written twice, misspelt, unknown or gone, and numbers that a YAML reader takes for text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.inputs.block import shorten
from simcore.inputs.yaml_parser import DUPLICATE, KeyPath, dotted
from simcore.lint.finding import Found, Severity
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import Subject
from simcore.lint.upstream import upstream_of
from simcore.recipes.imported import Left
from simcore.recipes.trl.stages import is_of_sft

__all__ = ["RULES"]

_DROPPED: Final[dict[str, tuple[str, str]]] = {
    "axolotl": ("axolotl drops it without a word", "axolotl 067b021c utils/config/__init__.py validate_config: "
                "only fields of AxolotlInputConfig are kept"),
    "trl": ("TRL refuses the recipe", "TRL 1.16.0 scripts/utils.py parse_args_and_config: Unknown arguments from "
            "config file"),
    "accelerate": ("accelerate refuses it at the top, and reads no such key in a block",
                   "accelerate 1.15.0 commands/config/config_args.py from_yaml_file"),
    "automodel": ("a block drops it, and a class refuses it",
                  "Automodel 36044ad3 components/config/loader.py instantiate"),
    "deepspeed": ("DeepSpeed reads no such key", "DeepSpeed 0.19.6 runtime/config.py"),
}
"""By format: what becomes of a key that upstream does not know, and where it says so."""
_OTHERS: Final = frozenset({"env", "config"})
"""Keys that TRL's parser takes out before it looks for arguments (`scripts/utils.py` parse_args_and_config)."""
_HANDED_ON: Final = {"trl": "accelerate"}
"""By format: the launcher whose options it hands on (TRL 1.16.0 `scripts/utils.py`)."""
_IN_TABLE: Final[Mapping[str, Callable[[frozenset[str]], bool]]] = {"trl": is_of_sft}
"""By format: true for keys of a recipe of the training that the table of upstream's keys is of; elsewhere all are."""
_ALIKE: Final = 0.8
"""Share of letters in common from which a key counts as another one misspelt."""
_ELSEWHERE: Final = ("upstream does not read it, or refuses it", "the format's reader knows the keys of its release")


def _find_duplicates(subject: Subject) -> Iterator[Found]:
    documents = filter(None, (file.mapping() for file in subject.files))
    for problem in (*subject.problems, *(one for document in documents for one in document.repeated.values())):
        if problem.message.startswith(DUPLICATE):
            yield Found(problem.where, problem.message, "keep one of the two lines")


def _find_misspelt(subject: Subject) -> Iterator[Found]:
    for one in _unknown(subject):
        if one.near:
            fate, source = _fate(subject)
            yield Found(one.where, f"{one.key} is no key of {subject.format} recipes: {fate}",
                        f"{one.near}: {one.value}", source=source)


def _find_unknown(subject: Subject) -> Iterator[Found]:
    for one in _unknown(subject):
        if not one.near:
            fate, source = _fate(subject)
            sure = upstream_of(subject.format) is not None
            told = (f"{one.key} is no key of {subject.format} recipes: {fate}" if sure else
                    f"{one.key} is not known as a key of {subject.format} recipes: if upstream does not have it "
                    f"either, {fate}")
            yield Found(one.where, told, "leave it out, or look up its name", None if sure else "note", source)


def _fate(subject: Subject) -> tuple[str, str]:
    """Fate of a key that upstream does not know, and the source, with the release whose keys are known."""
    fate, source = _DROPPED.get(subject.format, _ELSEWHERE)
    upstream = upstream_of(subject.format)
    return fate, f"{source}; keys as of {upstream.release}" if upstream else source


def _unknown(subject: Subject) -> list[Left]:
    """Keys that upstream does not have; `near`: one that it has and that is spelt almost alike.

    By the table of upstream's keys where the format has one, also for keys that a pattern of the reader takes; else by
    the reader's own, and so for trainings of TRL beside `trl sft`, whose keys the table has. A key that upstream has is
    none, whether the reader knows it or not, nor is an option of `accelerate launch` that `trl` hands on.
    """
    left = [one for one in (subject.imported.left if subject.imported else ()) if one.kind == "unknown" and one.key]
    upstream = upstream_of(subject.format)
    if upstream is None or subject.recipe is None:
        return left
    launcher = upstream_of(_HANDED_ON.get(subject.format, ""))
    handed_on = launcher.keys if launcher else frozenset[str]()
    if not _IN_TABLE.get(subject.format, bool)(frozenset(map(str, subject.recipe.data))):
        return [one for one in left if one.key not in handed_on]
    told = [one for one in left if "." in one.key and one.key.rpartition(".")[2] not in upstream.keys
            and one.key.partition(".")[0] in upstream.keys and subject.format == "accelerate"]
    for key, value in subject.recipe.data.items():
        is_known = key in upstream.keys | handed_on or key in _OTHERS or (subject.format, key) in _GONE
        if value is not None and not is_known:
            near = difflib.get_close_matches(key, sorted(upstream.keys - subject.recipe.data.keys()), 1, _ALIKE)
            told.append(Left("unknown", subject.recipe.where((key,)), key, shorten(value), "", "".join(near)))
    return told


@dataclass(frozen=True, slots=True)
class _Gone:
    """A key of an earlier release: what becomes of it today, and what to write. `severity`: of a recipe that has it."""

    fate: str
    instead: str
    severity: Severity = "error"


_GONE: Final[dict[tuple[str, str], _Gone]] = {
    ("axolotl", "max_packed_sequence_len"): _Gone("stops the run", "sample_packing: true, and sequence_len"),
    ("axolotl", "rope_scaling"): _Gone("stops the run", "the same block below overrides_of_model_config"),
    ("axolotl", "s2_attention"): _Gone("stops the run", "attn_implementation: flash_attention_2"),
    ("axolotl", "flash_attn_rms_norm"): _Gone("stops the run", "liger_rms_norm with Liger's plugin"),
    ("axolotl", "noisy_embedding_alpha"): _Gone("is an old name", "neftune_noise_alpha", "note"),
    ("axolotl", "evaluation_strategy"): _Gone("is an old name", "eval_strategy", "note"),
}
"""By format and key. The first ones stop a run only where their value is one: null, 0 and false do nothing."""


def _find_gone(subject: Subject) -> Iterator[Found]:
    for (form, key), gone in _GONE.items():
        if subject.format == form and subject.look(key):
            yield Found(subject.line(key), f"{key} {gone.fate}: this release no longer has it", gone.instead,
                        gone.severity)


_FREE: Final = re.compile(r"(lr_scheduler_kwargs|model_init_kwargs|overrides_of_model_config)\..*"
                          r"|(optimizer|scheduler)\.params\..*")
"""Keys whose values upstream hands on as they are, so that text stays text; others are converted."""
_TYPED: Final = ("axolotl", "trl", "deepspeed")
_YAML_1_1: Final = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*"
                              r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?")
"""Numbers as PyYAML 6.0.3 reads them (`resolver.py`): a power needs a point before it and a sign in it."""
_POWER: Final = re.compile(r"[-+]?[0-9.][0-9_.]*[eE][-+]?[0-9]+")


def _find_numbers_as_text(subject: Subject) -> Iterator[Found]:
    document = subject.recipe if subject.format in _TYPED else None
    for path, value in _leaves(document.data, ()) if document else ():
        written = _written(subject, path, value)
        if _FREE.fullmatch(dotted(path)) and written and document:
            yield Found(document.where(path), f"{dotted(path)}: {written} is text, and not a number, where it is used",
                        f"{path[-1]}: {float(written):.1e}")


def _written(subject: Subject, path: KeyPath, value: Any) -> str:
    """The number that the recipe's reader takes for text; "" if there is none."""
    if isinstance(value, str):
        return value if _POWER.fullmatch(value) or _YAML_1_1.fullmatch(value) else ""
    if not isinstance(value, float) or not subject.path.endswith((".yaml", ".yml")) or subject.recipe is None:
        return ""
    line = subject.files[0].text.splitlines()[subject.recipe.line_of(path) - 1]
    found = re.search(rf"\b{re.escape(str(path[-1]))}[\"']?\s*:\s*([^\s,}}#]+)", line)
    text = found[1] if found else ""
    return text if _POWER.fullmatch(text) and not _YAML_1_1.fullmatch(text) else ""


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


_SOURCES: Final = "; ".join(source for _, source in _DROPPED.values())

RULES: Final = (
    Rule("duplicate-key", "error", "A key is written twice: most readers take the last one and say nothing.",
         "PyYAML 6.0.3 constructor.py construct_mapping; DeepSpeed 0.19.6 runtime/config_utils.py refuses it",
         Example("axolotl", "micro_batch_size: 2\nmicro_batch_size: 4\n", "micro_batch_size: 4\n"), _find_duplicates),
    Rule("misspelt-key", "error", "A key is spelt almost like one that the format has.", _SOURCES,
         Example("axolotl", "context_parapllel_size: 1\n", "context_parallel_size: 1\n"), _find_misspelt),
    Rule("unknown-key", "warning", "A key is none of the format; a note where only the reader's own keys are known.",
         _SOURCES,
         Example("axolotl", "test_value: true\n", "strict: false\n"), _find_unknown),
    Rule("removed-key", "error", "A key is one of an earlier release.",
         "axolotl 067b021c utils/schemas/deprecated.py DeprecatedParameters",
         Example("axolotl", "max_packed_sequence_len: 2048\n", "sample_packing: true\n"), _find_gone),
    Rule("number-as-text", "error", "A number reaches its user as text: YAML 1.1 wants a point and a sign in a power "
         "(`1e-6` is text, `1.0e-6` a number), and a quoted number is text anywhere.",
         "PyYAML 6.0.3 resolver.py, float: a dot, and a sign in the exponent",
         Example("trl", "lr_scheduler_kwargs: {min_lr: 1e-6}\n", "lr_scheduler_kwargs: {min_lr: 1.0e-6}\n"),
         _find_numbers_as_text),
)
