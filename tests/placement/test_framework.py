"""Policies of tensors: the first rule that matches gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import small
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Framework, Rule, TensorPolicy
from simcore.placement.layout import TensorLayout
from simcore.units import dtype_bytes


def policy(name: str) -> TensorPolicy:
    layout = TensorLayout((), "bf16")
    return TensorPolicy(name, layout, layout, layout, layout)


def framework(*rules: Rule) -> Framework:
    return replace(small.prepared("fsdp2")[1], name="test", rules=rules)


def spec(name: str, module: str = "linear") -> TensorSpec:
    return TensorSpec(name, (4, 4), ("a", "b"), "attention", module)


NORMS = Rule(lambda t: t.module == "norm", policy("norms"))
REST = Rule(lambda t: True, policy("rest"))


def test_the_first_rule_that_matches_wins() -> None:
    table = framework(NORMS, REST)
    assert table.policy(spec("n", "norm")).name == "norms"
    assert table.policy(spec("w")).name == "rest"
    assert framework(REST, NORMS).policy(spec("n", "norm")).name == "rest"


def test_a_tensor_without_a_rule_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no rule for w"):
        framework(NORMS).policy(spec("w"))


@pytest.mark.parametrize(("name", "mesh"), [("fsdp2", {"dp_shard": 4, "ep": 2}),
                                            ("automodel", {"dp_shard": 4, "ep": 2}),
                                            ("megatron", {"dp_shard": 4, "ep": 2, "tp": 2, "etp": 1})])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_every_tensor_of_a_model_has_a_policy_and_buffers_are_whole(name: str, mesh: dict[str, int],
                                                                    method: str) -> None:
    job, table = small.prepared(name, mesh, method=method)
    for specs in job.graph.tensors:
        for tensor in specs:
            found = table.policy(tensor)
            assert found.at_rest.placements == () or not tensor.is_buffer
            assert dtype_bytes(found.at_rest.dtype) in (2, 4)
