"""Every problem of a job that can be known at once, and none that is only there because another was put aside."""

from __future__ import annotations

from typing import Any, Final

import pytest

from simcore.inputs.loading import entry_of
from simcore.lint.all_problems import without
from simcore.simulate import check
from simcore.studio.question import Question
from studio_jobs import JOB, Asked

pytestmark = pytest.mark.slow

_TRAINING: Final = JOB["training"]
WRONG: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "keys, batch and an option": (
        {"training": {**_TRAINING, "luck": 1, "global_batch_size": 63}, "framework_options": {"foo": 1}},
        {"training.luck", "training.global_batch_size", "framework_options.foo"}),
    "a model and a batch": (
        {"model": "qwen3-8c", "training": {**_TRAINING, "global_batch_size": 63}},
        {"model", "training.global_batch_size"}),
    "degrees that do not divide": (
        {"framework": "megatron", "mesh": {"dp_shard": 8, "tp": 3, "pp": 5},
         "training": {**_TRAINING, "seq_len": "many", "pipeline": {"virtual_stages": 2}}},
        {"mesh.tp", "mesh.pp", "training.seq_len"}),
    "what rests on a disk": (
        {"training": {**_TRAINING, "micro_batch_size": 3, "offload": {"params": "nvme", "optimizer": "nvme"}}},
        {"training.global_batch_size", "training.offload.params", "training.offload.optimizer"}),
    "nothing of stages once there is one": (
        {"framework": "automodel", "mesh": {"pp": 3, "dp_shard": 8}, "training": {
            **_TRAINING, "global_batch_size": 64, "pipeline": {"virtual_stages": 2}}},
        {"mesh.pp"}),
    "nothing beside a block that is missing": ({"training": None, "framework_options": {"foo": 1}}, {"training"}),
}


def test_all_problems_are_told_at_once(asked: Asked) -> None:
    for name, (changes, wanted) in WRONG.items():
        problems = asked("view", values={**JOB, **changes})["problems"]
        assert {one["where"] for one in problems} == wanted, (name, problems)
        assert len(problems) == len(wanted), (name, problems)


def test_a_problem_that_is_told_stays_when_the_others_are_mended(asked: Asked) -> None:
    """The one that was hidden is refused by itself too."""
    changes, _ = WRONG["keys, batch and an option"]
    document = Question.of({"values": {**JOB, **changes, "training": _TRAINING}}).document()
    (alone,) = check(entry_of(document).scenario, rules_only=True).problems  # type: ignore[arg-type]
    told = asked("view", values={**JOB, **changes})["problems"]
    assert alone.message in [one["message"] for one in told]
    assert without(document, "framework_options.foo").data["framework_options"] == {}
    dotted = Question.of({"values": {**JOB, "framework_options": {"moe.a": 1, "b": 2}}}).document()
    assert without(dotted, "framework_options.moe.a").data["framework_options"] == {"b": 2}


def test_a_layout_is_called_illegal_only_where_everything_else_is_modelled(asked: Asked) -> None:
    illegal = {**JOB, "mesh": {"dp_shard": 8, "ep": 2}}
    assert "Illegal layout" in asked("view", values=illegal)["parts"]["verdict"]
    also = {**illegal, "training": {**_TRAINING, "loss": "masked_fp32"}}
    answer = asked("view", values=also)
    assert {one["where"] for one in answer["problems"]} == {"mesh.ep", "training.loss"}
    assert "Could not be answered" in answer["parts"]["verdict"]
