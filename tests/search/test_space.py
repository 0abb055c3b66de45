"""Spaces: which candidates there are, what stays as it is, and refusals of keys."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.search.condition import condition
from simcore.search.space import candidates, space_of

BASE = Scenario.model_validate({
    "name": "base", "model": "qwen3-30b-a3b", "topology": "dgx-h100", "framework": "megatron",
    "framework_options": {"tp_comm_overlap": True},
    "training": {"seq_len": 4096, "global_batch_size": 16}})


def scenarios(**asked: Any) -> list[Scenario]:
    made = []
    for candidate in candidates(space_of(BASE, **asked)):
        try:
            made.append(changed(BASE, candidate))
        except InputError as error:
            assert "multiple of" in str(error)  # noqa: PT017 - the batch is the only thing that a candidate may break
    return made


def test_every_candidate_has_the_number_of_gpus_and_the_scenarios_numerics() -> None:
    made = scenarios(gpus=(4, 8), frameworks=("megatron", "fsdp2"))
    assert {one.world_size for one in made} == {4, 8}
    assert {one.training.precision for one in made} == {BASE.training.precision}
    assert {one.training.global_batch_size for one in made} == {16}
    assert {one.framework for one in made} == {"megatron", "fsdp2"}


def test_options_stay_with_their_framework() -> None:
    made = scenarios(gpus=(2,), frameworks=("megatron", "fsdp2"))
    assert all(one.framework_options.get("tp_comm_overlap") for one in made if one.framework == "megatron")
    assert not any("tp_comm_overlap" in one.framework_options for one in made if one.framework == "fsdp2")


def test_leaner_optimizers_and_states_on_the_host_are_each_tried_alone() -> None:
    free: dict[str, tuple[Any, ...]] = {"training.recompute": ("full",)}
    (plain,) = candidates(space_of(BASE, free=free))
    first, *leaner = candidates(space_of(BASE, free={**free, "leaner": ()}))
    assert first == plain
    assert [{key: value for key, value in one.items() if key not in plain} for one in leaner] == [
        {"training.optimizer.implementation": "fused"}, {"training.loss": "te"},
        {"training.offload.optimizer": "host"},
        dict.fromkeys(("training.offload.params", "training.offload.gradients", "training.offload.optimizer"), "host")]


def test_what_is_said_of_stages_is_not_set_where_there_are_none() -> None:
    base = changed(BASE, {"training.pipeline": {"virtual_stages": 3}, "mesh": {"pp": 2}})
    made = [changed(base, one) for one in candidates(space_of(base, gpus=(2,)))]
    assert {(one.mesh.pp, one.training.pipeline.virtual_stages) for one in made} == {(1, 1), (2, 3)}
    kept = space_of(base, gpus=(2,), free={"training.recompute": ()})
    assert not any("training.pipeline" in one for one in candidates(kept))


def test_expert_width_of_one_is_tried_where_the_framework_takes_tp() -> None:
    widths = {(one.mesh.tp, one.mesh.ep, one.mesh.etp) for one in scenarios(gpus=(8,))}
    assert {(2, 4, None), (2, 4, 1), (1, 8, None)} <= widths
    assert (1, 8, 1) not in widths


def test_only_named_keys_are_free() -> None:
    base = changed(BASE, {"mesh.dp_shard": 8})
    made = list(candidates(space_of(base, free={"mesh.ep": (), "training.seq_len": (1024, 2048)})))
    assert {tuple(one) for one in made} == {("mesh.ep", "training.seq_len")}
    assert [(one["mesh.ep"], one["training.seq_len"]) for one in made] == [
        (ep, length) for ep in (1, 2, 4, 8) for length in (1024, 2048)]


def test_a_model_without_experts_has_no_degrees_of_them_unless_they_are_named() -> None:
    dense = changed(BASE, {"model": "llama-3.2-3b", "framework_options": {}})
    for free, degrees in (({"mesh": ()}, {1}), ({"mesh.tp": (), "mesh.ep": ()}, {1, 2, 4, 8})):
        made = list(candidates(space_of(dense, gpus=(8,), free=free)))
        assert {one["mesh.ep"] for one in made} == degrees
    either: dict[str, tuple[Any, ...]] = {"mesh": (), "model": ("llama-3.2-3b", "qwen3-30b-a3b")}
    assert any(one["mesh.ep"] > 1 for one in candidates(space_of(dense, gpus=(8,), free=either)))


def test_conditions_on_keys_decide_before_anything_is_simulated() -> None:
    made = scenarios(gpus=(8,), conditions=[condition("mesh.tp * mesh.pp <= 2 and training.micro_batch_size == 1")])
    assert made
    assert all(one.mesh.tp * one.mesh.pp <= 2 and one.training.micro_batch_size == 1 for one in made)


def test_allowed_numerics_are_tried_beside_the_scenarios() -> None:
    made = scenarios(gpus=(1,), allow=("bf16-params",))
    assert {one.training.precision.params for one in made} == {"auto", "bf16"}


@pytest.mark.parametrize(("free", "says"), [
    ({"training.seq_len": ()}, "expected values"),
    ({"training.nonsense": (1,)}, "nonsense"),
    ({"mesh.tp": (), "training.micro_batch_size": (0,)}, "micro_batch_size"),
])
def test_wrong_free_keys_are_refused(free: dict[str, tuple[Any, ...]], says: str) -> None:
    with pytest.raises(InputError, match=says):
        space_of(BASE, free=free)


def test_a_condition_that_names_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no key of a scenario"):
        space_of(BASE, conditions=[condition("mesh.xx == 1")])
