"""Processes that do not fit the recipe, values that contradict each other, degrees that the framework refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.errors import Problem
from simcore.frameworks.adapted import NOTHING_ADAPTED
from simcore.lint.finding import Found
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import NOT_YET, SCENARIO, Subject

__all__ = ["RULES"]


def _find_wrong_count(subject: Subject) -> Iterator[Found]:
    """Problems at the place that says how many processes are started."""
    for problem in _contradictions(subject):
        if _is_about_count(problem, subject):
            yield Found(problem.where, problem.message, "start as many processes as the recipe's degrees ask for, or "
                                                        "change a degree")


def _find_wrong(subject: Subject) -> Iterator[Found]:
    of_scenario = subject.wrong() if subject.is_whole and _knows_model(subject) else ()
    for problem in (*_contradictions(subject), *of_scenario):
        if not _is_about_count(problem, subject):
            yield Found(subject.place(problem), problem.message, "a value that the message allows",
                        source=problem.rule or f"the reader of the format {subject.format}")


def _knows_model(subject: Subject) -> bool:
    """False if the layers of the model are not known, which is no fault of a recipe."""
    return subject.format == SCENARIO or bool(subject.config)


def _contradictions(subject: Subject) -> list[Problem]:
    """Problems that the reader of the recipe found in its values, but those of what is not modelled."""
    wrong = [*(subject.imported.wrong if subject.imported else ()), *(subject.problems if subject.counts else ())]
    return [problem for problem in wrong if not problem.message.startswith(NOT_YET)]


def _is_about_count(problem: Problem, subject: Subject) -> bool:
    return any(problem.where == count.where for count in subject.counts)


def _find_illegal(subject: Subject) -> Iterator[Found]:
    if not subject.is_whole or subject.is_swept:
        return
    for problem in subject.illegal():
        if problem.rule != NOTHING_ADAPTED:
            tried = " (with any number of GPUs)" if "mesh" in subject.assumed else ""
            yield Found(subject.place(problem), f"{problem.message}{tried}",
                        "a layout that the rule allows: `rankscope check` asks for it alone", source=problem.rule)


def _find_two_batch_sizes(subject: Subject) -> Iterator[Found]:
    if subject.format == "axolotl" and subject.look("batch_size") and subject.look("gradient_accumulation_steps"):
        yield Found(subject.line("batch_size"), "batch_size and gradient_accumulation_steps both say how many "
                    "microbatches a step has, which stops the run", "leave batch_size out")


def _find_idle_blocks(subject: Subject) -> Iterator[Found]:
    """Blocks of a scenario that its method or its workload does not read; others of a sweep may read them."""
    if subject.format != SCENARIO or subject.scenario is None or subject.is_swept:
        return
    method, work = subject.scenario.training.method, subject.scenario.workload
    for key, is_read, reader in (("training.lora", method != "full", "method lora or qlora"),
                                 ("training.quantization", method == "qlora", "method qlora"),
                                 ("rl", work in ("dpo", "grpo", "distillation"), "workload grpo or distillation"),
                                 ("teacher", work == "distillation", "workload distillation"),
                                 ("generation", work in ("grpo", "distillation", "serve"), "workload grpo, "
                                  "distillation or serve")):
        if subject.says(key) is not None and not is_read:
            yield Found(subject.where(key), f"{key}: nothing reads it without {reader}", f"{reader}, or leave it out")


RULES: Final = (
    Rule("launch-processes", "error", "The launch command starts another number of processes than the recipe is for.",
         "torchrun, accelerate, srun and mpirun start what they are told; the degrees must divide it",
         Example("automodel", "distributed: {strategy: fsdp2, tp_size: 1, pp_size: 4}\n",
                 "distributed: {strategy: fsdp2, tp_size: 1, pp_size: 1}\n",
                 launch=("run.sh", "torchrun --nproc-per-node 6 train.py mine.yaml\n")), _find_wrong_count),
    Rule("wrong-value", "error", "Two values contradict each other, such as the batch of a step and the ranks, or one "
         "is of a kind that the key does not take.", "the rule that the message names, or the format's reader",
         Example("scenario", "training: {seq_len: 2048, global_batch_size: 12}\n",
                 "training: {seq_len: 2048, global_batch_size: 16}\n"), _find_wrong),
    Rule("illegal-layout", "error", "The framework refuses the layout: a degree does not divide heads, layers, "
         "experts, a batch or the processes, or two options exclude each other.",
         "the framework's own check, which the finding names",
         Example("automodel", "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
                 "pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B}\ndistributed: {strategy: fsdp2, ep_size: 3}\n",
                 "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
                 "pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B}\ndistributed: {strategy: fsdp2, ep_size: 4}\n"),
         _find_illegal),
    Rule("two-batch-sizes", "error", "The batch of a step is given twice.",
         "axolotl 067b021c utils/schemas/validation.py check_gas_bsz",
         Example("axolotl", "batch_size: 8\n", "batch_size:\n"), _find_two_batch_sizes),
    Rule("idle-block", "warning", "A block of a scenario is read by no part of what it asks for.",
         "docs/scenario.md",
         Example("scenario", "training: {seq_len: 2048, global_batch_size: 16, lora: {rank: 8}}\n",
                 "training: {seq_len: 2048, global_batch_size: 16, method: lora, lora: {rank: 8}}\n"),
         _find_idle_blocks),
)
