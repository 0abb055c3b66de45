"""Blocks of models beside the policy, `teacher` and `value`: they have the keys of `policy`, and are read by its code.

Each is read as a policy of its own, into a draft of its own; what became of its keys is told under their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.errors import Problem
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import dotted
from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.imported import Imported
from simcore.recipes.nemo_rl.dtensor import read_dtensor
from simcore.recipes.nemo_rl.keys.without_effect import WITHOUT_EFFECT
from simcore.recipes.nemo_rl.logprobs import read_logprobs
from simcore.recipes.nemo_rl.megatron import read_megatron
from simcore.recipes.nemo_rl.policy import read_batches, read_model
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import read_rows

__all__ = ["check_alike", "read_other", "value_of", "write_keys"]

_GENERATED: Final = "what the policy generated"


def read_other(reader: Reader, draft: Draft, gpus: Answer | None, at: str, without: str = "") -> Imported | None:
    """Reads the block `at` of a model that shares the `gpus` that train; None, and a problem, without such a block.

    `without`: key of the block that means something else than in a policy, and is left to the caller.
    """
    if not reader.is_mapping(at):
        draft.fail(reader.document.where((at,)), f"{at}: expected a block, of a model beside the policy")
        return None
    alone = Reader(_as_policy(reader.document, at, without))
    length = draft.values.get("training", {}).get("seq_len")
    answers = replace(draft.answers, settings={}, seq_len=None if length is None else Answer(length, _GENERATED))
    found = _read(alone, Draft(draft.format, draft.path, answers), gpus)
    for problem in found.wrong:
        draft.fail(problem.where, _named(problem.message, at))
    for question in found.questions:
        draft.ask(f"{at}.{question.key}", question.option, _named(question.text, at))
    _tell(reader, draft, alone, found, at)
    return found


def _as_policy(document: Document, at: str, without: str) -> Document:
    """Document whose policy is the model of the block `at`."""
    def moved(paths: Any) -> dict[Any, Any]:
        return {("policy", *path[1:]): value for path, value in paths.items() if path and path[0] == at}

    policy = {key: value for key, value in document.data[at].items() if key != without}
    return Document(document.path, {"policy": policy}, moved(document.lines), moved(document.places))


def _read(alone: Reader, draft: Draft, gpus: Answer | None) -> Imported:
    read_model(alone, draft)
    by_megatron = alone.flag("policy.megatron_cfg.enabled")
    draft.use(by_megatron, why="says which workers run")
    is_megatron = by_megatron is not None and by_megatron.value
    if is_megatron:
        read_megatron(alone, draft, gpus, "distillation")
    else:
        read_dtensor(alone, draft, gpus)
    read_batches(alone, draft, "grpo")
    read_logprobs(alone, draft, "distillation", by_megatron=is_megatron)
    draft.idle(alone.matching("policy.generation", "policy.generation.*", "policy.refit_*"), "it generates nothing")
    draft.idle(alone.matching("policy.offload_optimizer_for_*"), "its states are where its own algorithm puts them")
    read_rows(alone, draft, WITHOUT_EFFECT)
    return draft.imported([alone], loose=False)


def _named(text: str, at: str) -> str:
    """Text of a message, with the names that keys of the block `at` have."""
    return text.replace("policy.", f"{at}.")


def _tell(reader: Reader, draft: Draft, alone: Reader, found: Imported, at: str) -> None:
    """Tells of each key of the block what became of it in the policy that it was read as."""
    left = {one.key: one for one in found.left}
    refused = {problem.message.split(": ")[1]: problem.message.split(": ", 2)[2] for problem in found.refused}
    for one in alone.handed_out():
        for own in reader.matching(_named(one.key, at)):
            if one.key in refused:
                draft.refuse(own, refused[one.key])
            elif one.key in left:
                given = draft.unmodelled if left[one.key].kind == "not modelled" else draft.idle
                given(own, left[one.key].why)
            else:
                draft.use(own, why="as the same key of a policy")
    nulls: list[Taken[Any]] = [own for one in alone.unsaid() for own in reader.matching(_named(one.key, at))]
    draft.idle(nulls, "says nothing")


def value_of(values: Mapping[str, Any], key: str) -> Any:
    """Value at a dotted key; an empty mapping where there is none."""
    found: Any = values
    for name in key.split("."):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found


def check_alike(draft: Draft, found: Imported, at: str, alike: Mapping[str, str], never: Mapping[str, str]) -> None:
    """Refuses a model that is not as the policy in keys of `alike`, or has keys of `never`: what is then said of it."""
    for key, what in alike.items():
        own = value_of(found.values, key)
        if own != value_of(draft.values, key):
            draft.refused.append(_problem(found, key, at, f"{what}: {own or 'none'}"))
    for key, what in never.items():
        if value_of(found.values, key):
            draft.refused.append(_problem(found, key, at, what))


def _problem(found: Imported, key: str, at: str, what: str) -> Problem:
    origin = found.origins.get(tuple(key.split(".")))
    return Problem(origin.where if origin else found.path, f"not yet: {at}: {what}")


def write_keys(draft: Draft, found: Imported, at: str, block: str, names: Mapping[str, str]) -> None:
    """Writes keys of the model into a `block` of the scenario: degrees, options, and `names` (a policy's key: ours)."""
    for path, origin in found.origins.items():
        key = dotted(path)
        name = f"{block}.{key}" if path[0] in ("mesh", "framework_options") else names.get(key, "")
        if name:
            draft.infer(name, value_of(found.values, key), _named(origin.text, at), source=origin.source,
                        where=origin.where)
