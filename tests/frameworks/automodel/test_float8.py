"""torchao's linears under Automodel: gathered in fp8, cast without a compiler, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.placement.plan import place
from simcore.results.report import Report
from simcore.simulate import simulate

LLAMA = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": False}}
GATHERED = {"fp8_all_gather": True}


def _given(mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None, **given: Any) -> Any:
    return small.scenario("automodel", mesh or {"dp_shard": 2}, options=GATHERED if options is None else options, **{
        "model": LLAMA, "precision": {"compute": "fp8"}, **given})


def _ran(*places: Any, **given: Any) -> Report:
    return simulate(_given(*places, **given))


@pytest.mark.parametrize("implementation", ["automodel", "hf"])
def test_linears_of_layers_are_gathered_in_fp8(implementation: str) -> None:
    job, table = prepare(_given(implementation=implementation))
    plan = place(job.graph, job.mesh, table, 0)
    used = {one.spec.name: one.policy.in_use.dtype for layer in plan.layers for one in plan.of_layer(layer)}
    narrow = {name.removesuffix(".weight") for name, dtype in used.items() if dtype == "fp8"}
    assert {name.rpartition(".")[2] for name in narrow} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    rest = [one for layer in plan.layers for one in plan.of_layer(layer) if one.policy.in_use.dtype == "fp8"]
    assert {(one.policy.at_rest.dtype, one.policy.grad.dtype) for one in rest} == {("bf16", "bf16")}


@pytest.mark.parametrize("implementation", ["automodel", "hf"])
def test_half_as_much_is_gathered_and_as_much_is_reduced(implementation: str) -> None:
    """But for lm_head, embedding and norms; activations are kept in 16 bits."""
    found = {compute: _ran(None, options, implementation=implementation, precision={"compute": compute})
             for compute, options in (("fp8", GATHERED), ("bf16", {}))}
    assert all(report.status == "ok" for report in found.values())
    sent = {name: {row.collective: row.wire_bytes for row in report.ranks[0].traffic if row.phase == "forward"}
            for name, report in found.items()}
    assert sent["fp8"]["all_gather"] < 0.75 * sent["bf16"]["all_gather"]
    reduced = [sum(row.wire_bytes for row in report.ranks[0].traffic if row.collective == "reduce_scatter")
               for report in found.values()]
    assert reduced[0] == reduced[1]


@pytest.mark.parametrize(("mesh", "options", "given", "status", "told"), [
    (None, {}, {}, "error", "gathered in 16 bits"),
    (None, None, {"seq_len": 40}, "illegal", "40 tokens of a microbatch: a product in 8 bits requires"),
    (None, None, {"method": "lora"}, "error", "adapters beside products in 8 bits"),
    ({"dp_shard": 1}, None, {}, "error", "on one GPU"),
    ({"dp_shard": 2, "cp": 2}, None, {}, "error", "over more than data"),
    (None, None, {"model": "mixtral-8x7b"}, "error", "mixtral in 8 bits by torchao"),
    (None, GATHERED | {"te_fp8": "block"}, {}, "error", "without products in 8 bits by TransformerEngine"),
    (None, None, {"precision": {"compute": "bf16"}}, "error", "fp8_all_gather: changes nothing")])
def test_what_is_refused(mesh: dict[str, int] | None, options: dict[str, Any] | None, given: dict[str, Any],
                         status: str, told: str) -> None:
    report = _ran(mesh, options, **given)
    assert report.status == status, report.problems
    assert told in report.problems[0].message
