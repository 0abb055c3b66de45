"""Nemotron-H of its own repository: what it registers, what adapters by name find, what its experts' loop keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import NotYet
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.common.lora import name_adapters
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.hf import remote_code
from simcore.operators.hub import implementation as hub
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Node, Op, Param, Section, Tape
from simcore.results.report import Report
from simcore.simulate import simulate

NANO = "nemotron-3-nano-30b-a3b"
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "up_proj", "down_proj", "lm_head")
"""`out_proj` is the only linear that is left out: Mamba's fused kernel takes its weight."""


def graph_of(model: str, implementation: str = "hub") -> ModelGraph:
    return build(model_config(model, None, "test"), implementation)


# ---- tensors --------------------------------------------------------------------------------------------------------
def test_nano_has_as_many_parameters_as_in_transformers() -> None:
    assert graph_of(NANO).count() == graph_of(NANO, "hf").count() == 31_577_937_344


@pytest.mark.parametrize(("implementation", "rank", "count"), [
    ("hub", 128, 3_532_644_352), ("hub", 256, 7_065_288_704), ("hf", 128, 107_995_136), ("hf", 256, 215_990_272)])
def test_adapters_by_name_find_every_routed_expert(implementation: str, rank: int, count: int) -> None:
    """Published counts of adapters on both; matrices in three dimensions are no linears."""
    choice = LoraChoice(rank, LINEARS, (), "none")
    adapted = graph_of(NANO, implementation).with_tensors(
        lambda kind, specs: (*specs, *name_adapters(kind, specs, choice)))
    assert adapted.count("adapters") == count


def test_every_expert_is_two_linears() -> None:
    graph = graph_of(NANO)
    (specs,) = (specs for kind, specs in zip(graph.kinds, graph.tensors, strict=True) if kind.name == "moe")
    assert {spec.name: (spec.shape, spec.copies, spec.module) for spec in specs if spec.copies > 1} == {
        "mixer.experts.up_proj.weight": ((1856, 2688), 128, "linear"),
        "mixer.experts.down_proj.weight": ((2688, 1856), 128, "linear")}


def test_other_families_have_no_such_layers_here() -> None:
    with pytest.raises(NotYet, match="served: nemotron_h"):
        graph_of("llama-3-8b")


# ---- under FSDP2 ----------------------------------------------------------------------------------------------------
def ran(mesh: dict[str, int] | None = None, **given: Any) -> Report:
    return simulate(small.scenario("fsdp2", mesh, **given).model_copy(update={"implementation": "hub"}))


def test_each_expert_is_cut_for_itself() -> None:
    """186 rows on 8 ranks: 24 on the first, and no row of one expert beside those of another."""
    model = {"config": small.TINY, "overrides": {"moe_intermediate_size": 186}}
    job, table = prepare(small.scenario("fsdp2", {"dp_shard": 8}, model=model).model_copy(
        update={"implementation": "hub"}))
    held = [p for p in place(job.graph, job.mesh, table, 0).of_layer(2) if p.spec.copies > 1]
    for placed in held:
        rows = -(-placed.spec.shape[0] // 8)
        assert placed.local == placed.spec.copies * rows * placed.spec.shape[1]
    assert held


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"ep": 2, "dp_shard": 2}, {}, "expert parallelism"), ({"tp": 2}, {}, "tensor and expert"),
    ({}, {"loss": "cut"}, "not yet: cut under fsdp2"), ({}, {"routing": {"seed": 0}}, "drawn at random"),
    ({}, {"lengths": "packed"}, "packed"), ({}, {"seq_len": 1}, "one that gets none")])
def test_what_is_not_served_is_refused_by_name(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = ran(mesh, **given)
    assert report.status != "ok"
    assert any(told in f"{problem.where} {problem.message}" for problem in report.problems)


def test_adapters_of_experts_learn_but_not_those_of_a_projection_that_a_kernel_takes() -> None:
    report = ran({"dp_shard": 2}, method="lora", lora={"rank": 8, "target_modules": [*LINEARS, "out_proj"]})
    assert report.adapters is not None
    assert report.adapters.adapted["mixer.experts.up_proj"] == 2
    assert list(report.adapters.without_gradient) == ["mixer.out_proj"]


# ---- tapes ----------------------------------------------------------------------------------------------------------
TOKENS = 64


def moe_tape(**given: Any) -> tuple[RecordedLayer, dict[int, str]]:
    """The layer of experts of the tiny model: 8 of them, 16 rows each; and names of its slots."""
    graph = graph_of(small.TINY)
    slots: dict[tuple[str, str], int] = {}
    (number,) = (i for i, kind in enumerate(graph.kinds) if kind.name == "moe")
    params = {spec.name: Param(spec.name, (spec.copies, *spec.shape) if spec.copies > 1 else spec.shape, "bf16", True)
              for spec in graph.tensors[number] if not spec.is_buffer}
    tape = hub.record(graph.kinds[number], LayerWorkload(1, TOKENS, "bf16", params, **given), slots, {})
    return tape, {slot: name for (name, _), slot in slots.items()}


def kept(section: Section, names: dict[int, str]) -> dict[str, int]:
    """Owner -> bytes that a section leaves."""
    left: dict[str, int] = {}
    for op, layer, slot, amount, _, _ in section.rows:
        if op in (Op.ALLOC, Op.FREE) and layer == 0:
            left[names[slot]] = left.get(names[slot], 0) + amount
    return {name: amount for name, amount in left.items() if amount}


def test_what_the_loop_over_experts_keeps() -> None:
    """Keeps of 128 rows: input, both of relu squared, output; in fp32 the weights and the weighted rows, which
    index_add_ keeps; two indices an entry."""
    tape, names = moe_tape()
    left, rows = kept(tape.forward, names), 2 * TOKENS
    assert {name.removeprefix("mixer."): size for name, size in left.items() if name.removeprefix("mixer.") in (
        "dispatched", "weighted", "found", "row_weights", "experts.down_proj", "experts.up_proj", "relu", "final",
        "expert_mask")} == {
            "dispatched": rows * 256 * 2, "weighted": rows * 256 * 4, "found": rows * 16, "row_weights": rows * 4,
            "experts.down_proj": rows * 256 * 2, "relu": rows * 128 * 2 + TOKENS * 256 * 2}


def test_gradients_of_all_experts_count_as_one() -> None:
    tape, _ = moe_tape()
    sizes = {param.name: size for param, _, size in tape.grads}
    assert len(sizes) == len(tape.grads)
    assert sizes["mixer.experts.up_proj.weight"] == sizes["mixer.experts.down_proj.weight"] == 8 * 128 * 256 * 2


def test_a_checkpoint_runs_the_loop_again_and_keeps_nothing_of_it() -> None:
    tape, names = moe_tape(checkpoint="layer")
    assert not any(name.startswith("mixer.") for name in kept(tape.forward, names))
    assert [(param, size) for param, _, size in tape.grads] == [
        (param, size) for param, _, size in moe_tape()[0].grads]


def test_the_loop_is_torch_s_own_birth_by_birth() -> None:
    """`tests/truth/probe_hub.py`: the loop between the router and the layer's sum, by itself."""
    truth = json.loads((ROOT / "tests/truth/tape/hub-torch-2.13.0.json").read_text(encoding="utf-8"))
    tape = Tape({}, {})
    shapes = {"up_proj": (8, 128, 256), "down_proj": (8, 256, 128)}
    params = {name: Param(name, shape, "bf16", True)
              for name, shape in ((f"m.experts.{part}.weight", shape) for part, shape in shapes.items())}
    hidden, weights, indices = (tape.external(shape, dtype, tape.slot(dtype, "activation"), -1) for shape, dtype in (
        ((TOKENS, 256), "bf16"), ((TOKENS, 2), "fp32"), ((TOKENS, 2), "int64")))
    hidden.node, weights.node = Node(), Node()
    run, block = LayerWorkload(1, TOKENS, "bf16", params), Moe(256, 8, 2, 128, 0)
    out = remote_code.experts(tape, run, "m", block, hidden, indices, weights)
    forward = amounts(tape.cut())
    tape.seed(out, hidden)
    tape.backward()
    assert sum(forward) == truth["kept"]
    assert [size for size in forward if size > 0] == truth["forward"]
    assert [size for size in amounts(tape.cut()) if size > 0] == truth["backward"]


def amounts(section: Section) -> list[int]:
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE)]


# ---- attention and loss ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", ["eager", "sdpa", "flash_attention_2"])
def test_no_attention_keeps_probabilities_and_all_keep_repeated_heads(given: str) -> None:
    """4 heads of 64, 2 of keys: both of the repeated, and no square of 64 positions a head."""
    report = ran({"dp_shard": 2}, options={"attn_implementation": given})
    assert report.status == "ok"
    made = small.postings(program_of(options={"attn_implementation": given}), "mixer.heads")
    assert sorted(size for _, phase, size in made if phase == "forward") == [TOKENS * 256 * 2] * 2


@pytest.mark.parametrize(("given", "count"), [("eager", 1), ("sdpa", 1), ("flash_attention_2", 0)])
def test_a_causal_mask_that_nobody_reads_lives_while_the_model_runs(given: str, count: int) -> None:
    found = small.postings(program_of(options={"attn_implementation": given}), "causal_mask")
    assert [size for _, _, size in found] == [TOKENS * TOKENS * 2, -TOKENS * TOKENS * 2] * count
    assert {phase for _, phase, _ in found} <= {"forward"}


@pytest.mark.parametrize(("batch", "copies"), [(1, 0), (2, 1)])
def test_logits_without_the_last_are_a_copy_where_there_are_several_rows(batch: int, copies: int) -> None:
    slots: dict[tuple[str, str], int] = {}
    graph = graph_of(small.TINY)
    (loss,) = (kind for kind in graph.kinds if kind.name == "loss")
    tape = hub.record(loss, LayerWorkload(batch, TOKENS, "bf16", {}), slots, {})
    copied = slots.get(("shifted_logits", "activation"))
    whole, cut = batch * TOKENS * 1024 * 4, batch * (TOKENS - 1) * 1024 * 4
    assert [row[3] for row in tape.forward.rows if row[0] == Op.ALLOC and row[2] == copied] == [cut] * copies
    assert [size for size in amounts(tape.backward) if size == whole] == [whole]  # zeros that the slice is put into


def program_of(**given: Any) -> Program:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, **given).model_copy(update={"implementation": "hub"})
    job, table = prepare(asked)
    plan = place(job.graph, job.mesh, table, 0)
    return lower(plan, Workload(1, TOKENS, 2 << 16), actions(table.schedule, plan.stage, 1), hooks_of(table))
