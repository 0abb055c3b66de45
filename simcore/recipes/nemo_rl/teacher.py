"""Distillation: the block `distillation`, and the block `teacher`, a policy that does not train.

A teacher's block has the keys of `policy`: it is read by the same code, as a policy of its own, of which the scenario's
block `teacher` is a part (NeMo RL 7ea279ab `algorithms/distillation.py` setup: Policy with init_optimizer False).
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
from simcore.recipes.nemo_rl.logprobs import read_logprobs
from simcore.recipes.nemo_rl.megatron import read_megatron
from simcore.recipes.nemo_rl.policy import read_batches, read_model
from simcore.recipes.nemo_rl.switches import read_switches
from simcore.recipes.nemo_rl.without_effect import WITHOUT_EFFECT
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, read_rows

__all__ = ["read_distillation", "read_teacher"]

_AT: Final = "teacher"
_ALIKE: Final = {"framework": "workers of another kind than the policy's", "framework_version": "another worker",
                 "training.precision.compute": "another format than the policy's"}
"""Keys in which a teacher is as the policy, and what is refused where it is not."""
_GENERATED: Final = "what the policy generated"
_NEVER: Final = {"training.method": "adapters of a teacher", "training.offload": "a teacher that rests on the host",
                 "training.logprob_chunk_size": "logits of a teacher in chunks"}
_ROWS: Final = (
    Says("distillation.num_prompts_per_step", "rl.prompts"),
    Says("distillation.num_generations_per_prompt", "rl.generations"),
    Says("distillation.topk_logits_k", "teacher.top_k"),
    Off("loss_fn.zero_outside_topk", "an entropy over the whole vocabulary in the loss"),
    Idle(("loss_fn.*",), "which divergence of the same log-probabilities"),
    Idle(("distillation.val_*", "distillation.max_val_samples"), "validation: not part of a step"),
    Idle(tuple(f"distillation.{name}" for name in ("max_num_epochs", "max_num_steps", "seed")),
         "length of the run, and its seed"),
)


def read_distillation(reader: Reader, draft: Draft) -> None:
    """Reads the block of the step, and that of its loss."""
    read_switches(reader, draft, {"distillation.max_rollout_turns": "a sequence is counted as one answer of full "
                                  "length"})
    read_rows(reader, draft, _ROWS)


def read_teacher(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    """Writes the block `teacher`, whose model shares the `gpus` that train."""
    if not reader.is_mapping(_AT):
        draft.fail(reader.document.where((_AT,)), "teacher: expected a block, of the model that is learned from")
        return
    alone = Reader(_as_policy(reader.document))
    length = draft.values.get("training", {}).get("seq_len")
    answers = replace(draft.answers, settings={}, seq_len=None if length is None else Answer(length, _GENERATED))
    found = _read(alone, Draft(draft.format, draft.path, answers), gpus)
    for problem in found.wrong:
        draft.fail(problem.where, _named(problem.message))
    for question in found.questions:
        draft.ask(f"{_AT}.{question.key}", question.option, _named(question.text))
    _tell(reader, draft, alone, found)
    _check(draft, found)
    _write(draft, found)


def _as_policy(document: Document) -> Document:
    """Document whose policy is the teacher."""
    def moved(paths: Any) -> dict[Any, Any]:
        return {("policy", *path[1:]): value for path, value in paths.items() if path and path[0] == _AT}

    return Document(document.path, {"policy": document.data[_AT]}, moved(document.lines), moved(document.places))


def _read(alone: Reader, draft: Draft, gpus: Answer | None) -> Imported:
    read_model(alone, draft)
    by_megatron = alone.flag("policy.megatron_cfg.enabled")
    draft.use(by_megatron, why="says which workers pass")
    is_megatron = by_megatron is not None and by_megatron.value
    if is_megatron:
        read_megatron(alone, draft, gpus, "distillation")
    else:
        read_dtensor(alone, draft, gpus)
    read_batches(alone, draft, "grpo")
    read_logprobs(alone, draft, "distillation", by_megatron=is_megatron)
    draft.idle(alone.matching("policy.generation", "policy.generation.*", "policy.refit_*"), "a teacher generates "
               "nothing")
    draft.idle(alone.matching("policy.offload_optimizer_for_*"), "a teacher has no optimizer")
    read_rows(alone, draft, WITHOUT_EFFECT)
    return draft.imported([alone], loose=False)


def _named(text: str) -> str:
    """Text of a message, with the names that a teacher's keys have."""
    return text.replace("policy.", f"{_AT}.")


def _tell(reader: Reader, draft: Draft, alone: Reader, found: Imported) -> None:
    """Tells of each key of the block what became of it in the policy that it was read as."""
    left = {one.key: one for one in found.left}
    refused = {problem.message.split(": ")[1]: problem.message.split(": ", 2)[2] for problem in found.refused}
    for one in alone.handed_out():
        for own in reader.matching(_named(one.key)):
            if one.key in refused:
                draft.refuse(own, refused[one.key])
            elif one.key in left:
                given = draft.unmodelled if left[one.key].kind == "not modelled" else draft.idle
                given(own, left[one.key].why)
            else:
                draft.use(own, why="of the teacher, as the same key of a policy")
    nulls: list[Taken[Any]] = [own for one in alone.unsaid() for own in reader.matching(_named(one.key))]
    draft.idle(nulls, "says nothing")


def _value(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for name in key.split("."):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found


def _check(draft: Draft, found: Imported) -> None:
    """Refuses a teacher with other lengths, formats or workers than the policy, or with settings of training."""
    for key, what in _ALIKE.items():
        own, other = _value(found.values, key), _value(draft.values, key)
        if own != other:
            draft.refused.append(_problem(found, key, f"a teacher with {what}: {own or 'none'}"))
    for key, what in _NEVER.items():
        if _value(found.values, key):
            draft.refused.append(_problem(found, key, what))


def _problem(found: Imported, key: str, what: str) -> Problem:
    origin = found.origins.get(tuple(key.split(".")))
    return Problem(origin.where if origin else found.path, f"not yet: {_AT}: {what}")


def _write(draft: Draft, found: Imported) -> None:
    for path, origin in found.origins.items():
        key, value = dotted(path), _value(found.values, dotted(path))
        name = {"rl.logprob_batch_size": "rl.logprob_batch_size", "model": f"{_AT}.model",
                "implementation": f"{_AT}.implementation",
                "training.sequence_parallel": f"{_AT}.sequence_parallel"}.get(key, "")
        if path[0] in ("mesh", "framework_options"):
            name = f"{_AT}.{key}"
        if name:
            draft.infer(name, value, _named(origin.text), source=origin.source, where=origin.where)
