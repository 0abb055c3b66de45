"""Experts as transformers 4.57.1 has them: their tensors, what is refused, what a layer keeps.

Allocations of whole steps are held to the library in `tests/test_truth_experts.py`.
"""

from __future__ import annotations

import pytest

from simcore.errors import NotYet
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.hf4 import implementation as hf4
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Param

MOE = ("qwen3-30b-a3b", "mixtral-8x7b")


def graph_of(model: str, implementation: str) -> ModelGraph:
    return build(model_config(model, None, "test"), implementation)


@pytest.mark.parametrize("model", MOE)
def test_there_are_as_many_parameters_as_in_the_next_version(model: str) -> None:
    assert graph_of(model, "hf4").count() == graph_of(model, "hf").count()


@pytest.mark.parametrize(("model", "names", "copies"), [
    ("qwen3-30b-a3b", ["gate_proj", "up_proj", "down_proj"], 128), ("mixtral-8x7b", ["w1", "w2", "w3"], 8)])
def test_the_router_comes_first_and_each_expert_is_three_linears(model: str, names: list[str], copies: int) -> None:
    graph = graph_of(model, "hf4")
    specs = next(specs for specs in graph.tensors if any(spec.copies > 1 for spec in specs))
    found = [spec for spec in specs if spec.path.startswith("mlp.")]
    assert [spec.path for spec in found] == ["mlp.gate", *(f"mlp.experts.{name}" for name in names)]
    assert {spec.module for spec in found} == {"linear"}
    assert [spec.copies for spec in found] == [1, *[copies] * 3]


def test_other_families_have_no_such_layers_here() -> None:
    with pytest.raises(NotYet, match=r"llama in the layers of transformers 4.57.1 \(served: qwen3_moe, mixtral\)"):
        graph_of("llama-3-8b", "hf4")


def test_an_expert_without_rows_is_not_served() -> None:
    graph = graph_of("qwen3-30b-a3b", "hf4")
    number = next(number for number, specs in enumerate(graph.tensors) if any(spec.copies > 1 for spec in specs))
    params = {spec.name: Param(spec.name, (spec.copies, *spec.shape) if spec.copies > 1 else spec.shape, "bf16",
                               trainable=True) for spec in graph.tensors[number]}
    with pytest.raises(NotYet, match="120 routed rows for 128 experts"):
        hf4.record(graph.kinds[number], LayerWorkload(1, 15, "bf16", params), {}, {})
    tape = hf4.record(graph.kinds[number], LayerWorkload(1, 16, "bf16", params), {}, {})
    assert sum(row[3] for row in tape.forward.rows if row[0] in (Op.ALLOC, Op.FREE)) > 0
    assert len({param.name for param, _, _ in tape.grads}) == len(tape.grads) == len(params)
