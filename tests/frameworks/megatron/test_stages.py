"""Stages, layouts and virtual stages of Megatron's pipelines."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import (
    DEEP,
    OVERLAP,
    QWEN3_MOE,
    V3,
    layer_counts,
    predicting,
    refused_with,
    small_moe_gpt,
)
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.inputs.scenario import Scenario
from simcore.recording.tape import Op
from simcore.simulate import simulate


@pytest.mark.parametrize(("told", "given"), [
    ("with expert model parallelism", {"mesh": {"dp_shard": 2}}),
    ("with alltoall/flex", {"options": OVERLAP | {"moe_token_dispatcher_type": "allgather"}}),
    ("needs virtual stages", {"mesh": {"pp": 2, "dp_shard": 2, "ep": 2}}),
    ("excludes full recomputation", {"recompute": "full"}),
    ("excludes full recomputation", {"recompute": {"mode": "block", "num_layers": 1}})])
def test_where_the_exchange_of_tokens_cannot_overlap(told: str, given: dict[str, Any]) -> None:
    refused_with("illegal", told, **{"model": QWEN3_MOE, "mesh": {"dp_shard": 2, "ep": 2}, "options": OVERLAP} | given)


def test_an_overlapped_exchange_is_said_to_be_assumed() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE, options=OVERLAP))
    assert report.status == "ok", report.problems
    assert [a.what for a in report.assumptions if a.kind == "assumed" and a.what in OVERLAP] == list(OVERLAP)
    refused_with("illegal", "must be enabled when", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
             options={"delay_wgrad_compute": True})
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
                                     options=OVERLAP | {"delay_wgrad_compute": True}))
    assert "delay_wgrad_compute" in {a.what for a in report.assumptions if a.kind == "assumed"}
    refused_with("illegal", "needs pipeline parallelism with an MTP layer", {"dp_shard": 2, "ep": 2}, options=OVERLAP,
             model=predicting())


@pytest.mark.parametrize(("mesh", "training", "layers", "paired"), [
    ({}, {"global_batch_size": 8}, 2, 3 / 4),
    ({"pp": 2}, {"global_batch_size": 8, "pipeline": {"virtual_stages": 2}}, 4, 1 - (1 + 2 + 1) / 8)])
def test_passes_ahead_of_the_first_pair_run_alone(
        mesh: dict[str, int], training: dict[str, Any], layers: int, paired: float) -> None:
    """On the mean stage: as many as there are stages ahead, a group for each further chunk, and one more."""
    model = {**QWEN3_MOE, "overrides": {**QWEN3_MOE["overrides"], "num_hidden_layers": layers}}
    for options, expected in ((OVERLAP, paired), ({}, 0.0)):
        _, table = small.prepared("megatron", {"dp_shard": 2, "ep": 2, **mesh}, model=model, options=options,
                                  **training)
        assert table.libraries.paired == expected


def test_nodes_have_a_backward_of_their_own() -> None:
    """Each is a run of autograd by itself: a tied head's gradient is in main_grad before the embedding's is made."""
    def waits(**given: Any) -> bool:
        program = small.program_of("megatron", options={"gradient_accumulation_fusion": False} | given.pop("options"),
                                   **given)
        return bool(small.postings(program, "tied.grad"))

    mesh = {"dp_shard": 2, "ep": 2}
    assert waits(mesh=mesh, model=small_moe_gpt(), options={})
    assert not waits(mesh=mesh, model=small_moe_gpt(), options=OVERLAP)

LAYOUT = "pipeline_model_parallel_layout"


@pytest.mark.parametrize(("layout", "counts"), [
    ("Ett|tt|tt|ttL", [2, 2, 2, 2]), ("E(t|)*3,t*5,L", [1, 1, 1, 5]), ("Et*3|t|(t|)*2t*2L", [3, 1, 1, 1, 2]),
    ("Et*4|t*4|L", [4, 4, 0])])
def test_a_layout_says_what_each_chunk_holds(layout: str, counts: list[int]) -> None:
    """pipeline_parallel_layer_layout.py: groups are unrolled first, then letters; commas are decoration."""
    pp = len(counts) if len(counts) % 2 else 2
    assert layer_counts({"pp": pp}, options={LAYOUT: layout}) == counts


def test_a_layout_may_be_a_list_of_words() -> None:
    def stages(layout: object) -> object:
        return small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})[1].stages

    listed = [["embedding", "decoder", "Decoder"], ["decoder"] * 2, ["decoder"] * 2, ["decoder", "decoder", "loss"]]
    assert stages(listed) == stages("Ett|tt|tt|ttL")
    for told, layout in (("encoder is not a valid LayerType", [["embedding", "encoder"], ["loss"]]),
                         ("a list of lists", ["embedding", "loss"]), ("a list of lists", [[1], ["loss"]]),
                         ("number of decoder layers 1", [["embedding"], ["decoder", "loss"]])):
        refused_with("illegal", told, {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})


def test_a_layout_makes_the_schedule_interleaved() -> None:
    _, table = small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: "Ett|tt|tt|ttL"})
    _, asked = small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, pipeline={"virtual_stages": 2})
    assert (table.schedule, table.stages) == (asked.schedule, asked.stages)
    _, table = small.prepared("megatron", {"pp": 2}, model=DEEP, options={LAYOUT: "Ettt|t*5,L"})
    assert table.schedule.name == "1f1b"


def test_the_final_norm_is_where_the_last_decoder_layer_is() -> None:
    """transformer_block.py:401, with multi-token prediction alone."""
    def last(model: Any, layout: str) -> list[str]:
        job, table = small.prepared("megatron", {"pp": 2}, model=model, options={LAYOUT: layout})
        return [job.graph.kinds[job.graph.layers[layer].kind].name for layer in table.stages[-1]]

    assert last(predicting(), "Ett|mL") == ["mtp", "head", "loss"]
    assert last(V3, "Ett|L") == ["final_norm", "head", "loss"]
    assert last(predicting(), "Et|tmL") == ["moe_decoder", "final_norm", "mtp", "head", "loss"]
    _, table = small.prepared("megatron", {"pp": 2}, model=predicting(), microbatches=4, options={LAYOUT: "Et|t|m|L"})
    assert table.stages == ((0, 1), (2, 3), (4,), (5, 6)), "the norm is behind the experts"


@pytest.mark.parametrize(("pp", "layout"), [(2, "Ett|mL"), (2, "Et|t|m|L"), (4, "Et|t|m|L"), (3, "Ett|m|L")])
def test_multi_token_prediction_apart_lets_everything_go(pp: int, layout: str) -> None:
    for rank in range(pp):
        alike = [small.program_of("megatron", {"pp": pp}, model=predicting(), microbatches=count, rank=rank,
                                  options={LAYOUT: layout}) for count in (2 * pp, 4 * pp)]
        ends = [sum(row[3] for row in p.columns.tolist() if row[0] in (Op.ALLOC, Op.FREE)) for p in alike]
        assert ends[0] == ends[1]
    report = simulate(small.scenario("megatron", {"pp": pp}, model=predicting(), microbatches=2 * pp,
                                     options={LAYOUT: layout}))
    assert report.status == "ok", report.problems


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_module_that_runs_several_times_may_have_stages_and_adapters(method: str) -> None:
    model = {"config": "nemotron-3-tiny", "overrides": {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E",
                                                        "mtp_use_repeated_layer": True}}
    ends = [[sum(row[3] for row in small.program_of(
        "megatron", {"pp": 2}, model=model, microbatches=count, rank=1, version="main 2026-08-22", method=method,
        pipeline={"layers": [2, 3]}).columns.tolist() if row[0] in (Op.ALLOC, Op.FREE))] for count in (2, 4)]
    assert ends[0] == ends[1]
    for target, told in (("output_layer", "an output layer"), ("*linear_proj", "patterns of whole paths")):
        refused_with("error", told, {"pp": 2}, model=model, microbatches=4, version="main 2026-08-22", method="lora",
                     pipeline={"layers": [2, 3]}, lora={"target_modules": [target]})


def test_multi_token_prediction_hands_on_both_outputs() -> None:
    """gpt_model.py: without the output layer _postprocess returns what both made, 2 x 64 tokens of 256 numbers."""
    def sent(rank: int) -> set[tuple[str, int]]:
        program = small.program_of("megatron", {"pp": 3}, model=predicting(), microbatches=6, rank=rank,
                                   options={LAYOUT: "Ett|m|L"})
        return {(phase, size) for _, phase, size in small.calls(program, "send_recv")}

    once, twice = 64 * 256 * 2, 2 * 64 * 256 * 2
    assert sent(0) == {("forward", once), ("backward", once)}
    assert sent(1) == {("forward", once), ("forward", twice), ("backward", once), ("backward", twice)}
    assert sent(2) == {("forward", twice), ("backward", twice)}


@pytest.mark.parametrize(("layout", "told"), [
    ("Ett|tt|tt|tXL", "Invalid layer character: X"), ("Ett|tt|t*4L", "3 chunks must be divisible"),
    ("t*4|t*4L", "first layer must be the embedding"), ("Et*4|E,t*4L", "first layer must be the embedding"),
    ("Et*4|t*4", "last layer must be the loss"), ("Et*4|L,t*4L", "last layer must be the loss"),
    ("Et*4|t*3L", "number of decoder layers 7 must match num_layers 8"), ("Et*4|t*4mL", "mtp layers 1 must match"),
    ("", "1 chunks must be divisible"), ("Et*99999999999|L", "more than"), ("(E(t*4|)*2000000,L", "more than"),
    ("Et*4|t*4L*0", "last layer must be the loss")])
def test_layouts_that_are_refused(layout: str, told: str) -> None:
    refused_with("illegal", told, {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})


def test_a_layout_stands_for_itself() -> None:
    even = "Ett|tt|tt|ttL"
    refused_with("illegal", "cannot be set at the same time", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even, "account_for_loss_in_pipeline_split": True})
    refused_with("illegal", "cannot be set at the same time", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even}, pipeline={"layers": [2, 2, 2, 2], "virtual_stages": 2})
    refused_with("illegal", "no more than one of", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even}, pipeline={"virtual_stages": 4})


@pytest.mark.parametrize(("layout", "status", "told"), [
    ("Et|m|t|L", "illegal", "decoder layers must be placed before"), ("Et|t||mL", "error", "not yet: a stage without"),
    ("Et|tmL||", "illegal", "always in the last virtual"), ("Et|tm||L", "illegal", "always in the last virtual")])
def test_where_multi_token_prediction_may_be_laid(layout: str, status: str, told: str) -> None:
    refused_with(status, told, {"pp": 2}, model=predicting(), microbatches=8, options={LAYOUT: layout})


def test_virtual_stages_go_round_the_ranks() -> None:
    assert layer_counts({"pp": 2}, pipeline={"virtual_stages": 2}) == [2, 2, 2, 2]
    for rank, layers in enumerate([(0, 1, 2, 5, 6), (3, 4, 7, 8, 9, 10, 11)]):
        plan = small.plan_of("megatron", {"pp": 2}, rank=rank, model=DEEP, microbatches=8,
                             pipeline={"virtual_stages": 2})
        assert plan.layers == layers


@pytest.mark.parametrize(("options", "layers", "counts"), [
    ({"num_layers_in_first_pipeline_stage": 2}, "auto", [1, 3, 1, 3]),
    ({"num_layers_in_last_pipeline_stage": 2}, "auto", [3, 1, 3, 1]),
    ({}, [1, 3, 2, 2], [1, 3, 2, 2]), ({}, [3, 2, 3, 0], [3, 2, 3, 0])])
def test_virtual_stages_of_uneven_ranks(options: dict[str, Any], layers: object, counts: list[int]) -> None:
    given: dict[str, Any] = {"options": options, "pipeline": {"virtual_stages": 2, "layers": layers}}
    assert layer_counts({"pp": 2}, **given) == counts
    assert simulate(small.scenario("megatron", {"pp": 2}, model=DEEP, microbatches=8, **given)).status == "ok"


@pytest.mark.parametrize(("ends", "chunks", "blocks", "counts"), [
    (("embedding", "loss"), 1, 6, [3, 3]), (("loss",), 1, 7, [4, 3]), (("embedding",), 2, 7, [1, 2, 2, 2])])
def test_the_embedding_and_the_loss_may_count_as_layers(ends: tuple[str, ...], chunks: int, blocks: int,
                                                        counts: list[int]) -> None:
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": blocks}}
    options = {f"account_for_{end}_in_pipeline_split": True for end in ends}
    assert layer_counts({"pp": 2}, model=model, options=options, pipeline={"virtual_stages": chunks}) == counts


@pytest.mark.parametrize(("told", "mesh", "microbatches", "pipeline", "options"), [
    ("should be greater than 1", {}, 8, {"virtual_stages": 2}, {}),
    ("must be divisible by virtual pipeline parallel degree 3", {"pp": 2}, 8, {"virtual_stages": 3}, {}),
    ("should range in [PP=4, M=2]", {"pp": 4}, 2, {"virtual_stages": 2}, {}),
    ("the remainder of 6 micro-batches divided by 4", {"pp": 4}, 6, {"virtual_stages": 2}, {}),
    ("(3) should range", {"pp": 4}, 8, {"virtual_stages": 2}, {"microbatch_group_size_per_vp_stage": 3}),
    ("expected 4 numbers", {"pp": 2}, 8, {"virtual_stages": 2, "layers": [4, 4]}, {}),
    ("cannot be set at the same time", {"pp": 2}, 8, {"layers": [4, 4]}, {"num_layers_in_first_pipeline_stage": 4}),
    ("gpipe: stages run 1F1B", {"pp": 2}, 8, {"schedule": "gpipe"}, {}),
    ("no virtual stages", {"pp": 2}, 8, {}, {"microbatch_group_size_per_vp_stage": 2}),
    ("no standalone embedding", {"pp": 2}, 8, {}, {"num_layers_in_first_pipeline_stage": 4,
                                                   "account_for_loss_in_pipeline_split": True}),
    ("should be divisible by pipeline_model_parallel_size 3", {"pp": 3}, 8, {}, {}),
    ("Mismatch: 0 middle layers remaining but -1 middle PP stages", {"pp": 1}, 8, {}, {
        "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 4}),
    ("Mismatch: 1 middle layers remaining but 0 middle PP stages", {"pp": 2}, 8, {}, {
        "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 3}),
    ("3 layers do not divide into 2 middle stages", {"pp": 4}, 8, {}, {
        "num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 2}),
])
def test_pipelines_that_core_refuses(told: str, mesh: dict[str, int], microbatches: int, pipeline: dict[str, Any],
                                     options: dict[str, Any]) -> None:
    refused_with("illegal", told, mesh, model=DEEP, microbatches=microbatches, pipeline=pipeline, options=options)


def test_a_stage_without_layers_is_not_modelled() -> None:
    refused_with("error", "not yet: a stage without layers", {"pp": 2}, model=DEEP, microbatches=8,
             pipeline={"virtual_stages": 2, "layers": [3, 0, 3, 2]})


def _passing(rank: int, num_layers: int, options: dict[str, bool]) -> dict[tuple[str, str], int]:
    """Bytes that passes leave allocated when the step is over: messages, which those of the next step replace."""
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": num_layers}}
    program = small.program_of("megatron", {"pp": 2}, rank=rank, model=model, options=options, microbatches=4,
                               pipeline={"virtual_stages": 2})
    slots, held = list(program.tables.slots), dict[tuple[str, str], int]()
    for op, _, slot, amount, _, _ in program.columns.tolist():
        if op in (Op.ALLOC, Op.FREE) and slots[slot][1] in ("activation", "backward_temp"):
            held[slots[slot]] = held.get(slots[slot], 0) + amount
    return {key: size for key, size in held.items() if size}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_first_stage_may_hold_the_embedding_alone(rank: int) -> None:
    """Two layers and both ends in four chunks leave behind what four layers do."""
    ends = {f"account_for_{end}_in_pipeline_split": True for end in ("embedding", "loss")}
    assert _passing(rank, 2, ends) == _passing(rank, 4, {}) != {}


def test_a_hybrid_model_has_virtual_stages_on_main_alone_where_its_pattern_says_so() -> None:
    """nemotron-3-tiny has five layers."""
    given: dict[str, Any] = {"microbatches": 4, "pipeline": {"virtual_stages": 2, "layers": [1, 1, 1, 2]}}
    refused_with("illegal", "does not currently support virtual", {"pp": 2}, **given)
    newer = {"framework_version": "main 2026-08-22"}
    asked = small.scenario("megatron", {"pp": 2}, **given).normalised() | newer
    assert simulate(Scenario.model_validate(asked)).status == "ok"
    asked["training"]["pipeline"]["layers"] = "auto"
    report = simulate(Scenario.model_validate(asked))
    assert report.status == "illegal"
    assert "need `|` in its pattern" in report.problems[0].message


def test_every_chunk_has_buffers_of_its_own() -> None:
    """The first chunk of the first rank in buckets, the others in one each (DDP's disable_bucketing)."""
    for rank, chunks in ((0, [0, 1]), (1, [0, 1])):
        plan = small.plan_of("megatron", {"pp": 2, "dp_shard": 2}, rank=rank, model=DEEP, microbatches=8,
                             pipeline={"virtual_stages": 2})
        buffers = rank_buffers(plan)
        assert [buffer.chunk for buffer in buffers] == chunks
        assert [sorted(set(buffer.layers.tolist())) for buffer in buffers] == [
            [layer for layer in chunk if plan.of_layer(layer)] for chunk in plan.chunks]


@pytest.mark.parametrize("overlap", [True, False])
def test_each_chunk_is_reduced_once_and_gathered_once(overlap: bool) -> None:
    plain, virtual = (simulate(small.scenario(
        "megatron", {"pp": 2, "dp_shard": 2}, model=DEEP, microbatches=8, pipeline={"virtual_stages": chunks},
        options={"overlap_grad_reduce": overlap})) for chunks in (1, 2))
    for name in ("reduce_scatter", "all_gather"):
        one, other = ([row for rank in report.ranks for row in rank.traffic if row.collective == name]
                      for report in (plain, virtual))
        assert sum(row.calls for row in other) == 2 * sum(row.calls for row in one) == 4
        assert sum(row.payload_bytes for row in other) >= sum(row.payload_bytes for row in one)
