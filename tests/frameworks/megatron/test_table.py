"""Megatron-Core: jobs that it refuses, jobs that are not modelled, and the defaults that a report lists."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import DEEP, OVERLAP, QWEN3_MOE, TIED, defaults, predicting, refused_with, small_moe_gpt
from simcore.inputs.scenario import Scenario
from simcore.recording.tape import HIDDEN, Op
from simcore.simulate import place, simulate


def test_the_last_stage_copies_a_tied_embedding() -> None:
    first, last = (small.plan_of("megatron", {"pp": 2}, model=TIED, rank=rank).at_rest() for rank in (0, 1))
    assert first["embedding"] == last["embedding"]
    assert "lm_head" not in last
    alone = small.plan_of("megatron", {"dp_shard": 2}, model=TIED).at_rest()
    assert alone["embedding"].num_params == first["embedding"].num_params


def test_a_copied_embedding_is_told_of() -> None:
    report = simulate(small.scenario("megatron", {"pp": 2}, model=TIED))
    assert [a.what for a in report.assumptions if a.what.startswith("tied")] == ["tied embedding"]
    assert not [a for a in simulate(small.scenario("megatron", {"dp_shard": 2}, model=TIED)).assumptions
                if a.what.startswith("tied")]


def test_experts_need_a_model_that_has_them() -> None:
    refused_with("illegal", "num_moe_experts must be non None", {"dp_shard": 2, "ep": 2}, model="llama-tiny")


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    refused_with("illegal", "Cannot use sequence parallelism", sequence_parallel=True)


@pytest.mark.parametrize("implementation", ["hf", "automodel"])
def test_other_layers_do_not_run_here(implementation: str) -> None:
    data = small.scenario("megatron").normalised() | {"implementation": implementation}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert f"not yet: the layers of {implementation} under megatron" in report.problems[0].message


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "told"), [
    ({"use_distributed_optimizer": False, "overlap_param_gather": True}, "only supported with distributed optimizer"),
    ({"moe_flex_dispatcher_backend": "deepep"}, "only supported with flex token dispatcher"),
    ({"moe_flex_dispatcher_backend": "hybridep", "moe_token_dispatcher_type": "alltoall"}, "flex token dispatcher")])
def test_options_that_exclude_each_other(options: dict[str, Any], told: str) -> None:
    refused_with("illegal", told, options=options)


def test_one_bucket_is_gathered_by_the_first_layer() -> None:
    """Core param_and_grad_buffer.py, finish_param_sync: without overlapped reductions nothing is gathered ahead.

    NeMo RL and Bridge allow it, and have no such check as Megatron-LM training/arguments.py:1028.
    """
    both = [simulate(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", options={
        "overlap_grad_reduce": False, "overlap_param_gather": ahead})) for ahead in (False, True)]
    assert [report.status for report in both] == ["ok", "ok"]
    gathers = [[(row.phase, row.calls, row.payload_bytes) for row in report.ranks[0].traffic
                if row.collective == "all_gather"] for report in both]
    assert [[phase for phase, _, _ in rows] for rows in gathers] == [["optimizer"], ["forward"]]
    assert gathers[0][0][1:] == gathers[1][0][1:]
    times = [report.time.step_s for report in both if report.time]
    assert times[1] == pytest.approx(times[0], rel=0.02)


def test_user_buffers_lie_outside_torch() -> None:
    """20 bytes for each of 64 x 256 elements: six buffers to gather into, four to sum in."""
    def held(**options: bool) -> list[tuple[str, int]]:
        report = simulate(small.scenario("megatron", {"tp": 2}, model="llama-tiny", options=options))
        peak = report.ranks[0].peak
        assert peak is not None
        return [(name, size) for name, size in peak.outside.items() if name == "workspace"]

    assert held(tp_comm_overlap=True) == [("workspace", 20 * 64 * 256)]
    assert held() == []
    refused_with("illegal", "only when sequence parallelism is enabled", model="llama-tiny",
             options={"tp_comm_overlap": True})
    refused_with("error", "other layers than attention", {"tp": 2}, options={"tp_comm_overlap": True})


def test_a_shared_expert_beside_the_exchange_of_tokens() -> None:
    option = {"moe_shared_expert_overlap": True}
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, options=option))
    assert {"moe_shared_expert_overlap"} <= {a.what for a in report.assumptions if a.kind == "assumed"}
    refused_with("illegal", "only works with alltoall", {"dp_shard": 2, "ep": 2},
             options=option | {"moe_token_dispatcher_type": "flex"})
    _, table = small.prepared("megatron", {"dp_shard": 2, "ep": 2}, version="main 2026-08-22",
                              options=option | {"moe_token_dispatcher_type": "flex"})
    assert table.libraries.beside_exchanges == ("shared_experts",)
    refused_with("illegal", "only works with alltoall or flex", {"dp_shard": 2, "ep": 2}, version="main 2026-08-22",
                 options=option | {"moe_token_dispatcher_type": "allgather"})
    refused_with("illegal", "disable moe_shared_expert_overlap", {"dp_shard": 2, "ep": 2}, options=option | OVERLAP)
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE, options=option))
    assert "changes nothing without a shared expert" in report.problems[0].message


def test_parameters_are_gathered_ahead_where_gradients_are_reduced_beside_backward() -> None:
    assert defaults(options={"overlap_grad_reduce": False})["framework_options.overlap_param_gather"] == "false"


def _reductions(**options: Any) -> int:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, options=options))
    return sum(row.calls for row in report.ranks[0].traffic if row.collective == "reduce_scatter")


def test_buckets_grow_with_the_ranks_unless_their_size_is_given() -> None:
    """Core 0.16.1 distributed_data_parallel.py:65."""
    found = [defaults({"dp_shard": ranks})["framework_options.bucket_size"] for ranks in (2, 64)]
    assert found == ["40000000", "64000000"]
    assert "framework_options.bucket_size" not in defaults(options={"bucket_size": 100_000})
    assert _reductions(bucket_size=100_000) > _reductions(bucket_size=400_000) > _reductions() == 1
    idle = {"bucket_size": 100_000, "overlap_grad_reduce": False}
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, options=idle))
    assert "changes nothing without overlap_grad_reduce" in report.problems[0].message


@pytest.mark.parametrize("given", [
    {}, {"recompute": "full"}, {"recompute": ["moe_act", "mla_up_proj", "layernorm"]}, {"loss": "te_inplace"},
    {"options": {"gradient_accumulation_fusion": False}}, {"recompute": {"mode": "block", "num_layers": 1}}], ids=str)
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"pp": 2}, {"cp": 2}], ids=str)
def test_multi_token_prediction_runs_and_lets_everything_go(mesh: dict[str, int], given: dict[str, Any]) -> None:
    """A step ends with the bytes that it began with: states, gradients, workspaces and a stage's received inputs."""
    last = 2 * mesh.get("pp", 1) * mesh.get("tp", 1) // 2 - 1
    alike = [small.program_of("megatron", mesh, model=predicting(), microbatches=count, rank=last, **given)
             for count in (2, 3)]
    ends = [sum(row[3] for row in program.columns.tolist() if row[0] in (Op.ALLOC, Op.FREE)) for program in alike]
    assert ends[0] == ends[1], "a microbatch leaves something behind"


def test_the_stage_of_multi_token_prediction_copies_the_embedding() -> None:
    """language_module.py, setup_embeddings_and_output_layer: on one stage both use the same weight."""
    def held(mesh: dict[str, int], rank: int) -> int:
        plan = small.plan_of("megatron", mesh, model=predicting(), rank=rank)
        return plan.at_rest()["embedding"].num_params

    assert held({}, 0) == held({"pp": 2}, 0) == held({"pp": 2}, 1) == 1024 * 256


def test_the_first_logits_go_with_the_second() -> None:
    """`mtp_logits` is a local variable of _postprocess: both heads' logits lie side by side."""
    program = small.program_of("megatron", {}, model=predicting(), microbatches=1)
    slots = {number for (name, _), number in program.tables.slots.items()
             if name in ("hidden_states", "mtp.hidden_states")}
    logits = 64 * 1024 * 2
    moves = [(row[0], row[1]) for row in program.columns.tolist()
             if row[0] in (Op.ALLOC, Op.FREE) and row[2] in slots and abs(row[3]) == logits]
    head = 5
    assert moves == [(Op.ALLOC, head), (Op.ALLOC, head), (Op.FREE, head), (Op.FREE, head)]
    assert [slot for slot in (row[2] for row in program.columns.tolist() if (row[0], row[1]) == (Op.ALLOC, head))
            if slot in slots][:2] == [program.tables.slots["mtp.hidden_states", "activation"], HIDDEN]


@pytest.mark.parametrize("fused", [True, False])
def test_a_second_embeddings_gradient_waits_on_one_stage(fused: bool) -> None:
    """No GEMM makes it, so fusion changes nothing."""
    def waited(mesh: dict[str, int]) -> list[int]:
        program = small.program_of("megatron", mesh, model=predicting(), microbatches=1, rank=mesh.get("pp", 1) - 1,
                                   options={"gradient_accumulation_fusion": fused})
        return [size for *_, size in small.postings(program, "tied.grad")]

    weight = [1024 * 256 * 2, -1024 * 256 * 2]
    assert waited({}) == weight
    assert not waited({"pp": 2})


def test_what_is_refused_of_multi_token_prediction() -> None:
    refused_with("error", "not yet: multi-token prediction by several modules", model=predicting(2))
    assert place(small.scenario("megatron", {"dp_shard": 2}, model=predicting(2))).status == "ok"
    tied = {"config": "nemotron-3-tiny", "overrides": {"mtp_num_layers": 1, "mtp_hybrid_override_pattern": "*E",
                                                       "tie_word_embeddings": True}}
    refused_with("error", "not yet: multi-token prediction with tied", model=tied, version="main 2026-08-22")
    refused_with("error", "not yet: DoRA with multi-token prediction", model=predicting(), method="lora",
                 lora={"use_dora": True, "target_modules": ["linear_proj"]})
    refused_with("error", "not yet: weight gradients of a head", {"pp": 2}, model=predicting(),
             options={"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 1})
    refused_with("illegal", "must be 1 for MTP recompute", model=predicting(),
             recompute={"mode": "uniform", "num_layers": 2})
    detached: dict[str, Any] = {"options": {"mtp_detach_heads": True}}
    refused_with("illegal", "core 0.16.1 has no such field", model=predicting(), **detached)
    refused_with("illegal", "the model has no such modules", version="main 2026-08-22", **detached)
    refused_with("error", "not yet: detached modules beside several stages", {"pp": 2}, model=predicting(),
                 version="main 2026-08-22", **detached)
    other = {"config": "qwen3-8b", "overrides": {"mtp_num_layers": 1}}
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, model=other))
    assert "multi-token prediction of qwen3 is not modelled yet" in report.problems[0].message


def test_operations_in_place_of_modules_are_for_dense_mlps() -> None:
    """core 0.16.1 gpt_layer_specs.py:494; main fuses experts too (moe/experts.py)."""
    fuser = {"use_transformer_engine_op_fuser": True}
    adapted = small.scenario("megatron", {"dp_shard": 2}, model=DEEP, options=fuser, method="lora")
    assert "that has no gate, or adapters" in simulate(adapted).problems[0].message
    assert simulate(small.scenario("megatron", {"dp_shard": 2}, model=DEEP, options=fuser)).status == "ok"
    asked = small.scenario("megatron", {"dp_shard": 2}, model=small_moe_gpt(), options=fuser)
    report = simulate(asked.model_copy(update={"framework_version": "main 2026-08-22"}))
    assert "in other formats than mxfp8" in report.problems[0].message
    again = small.scenario("megatron", {"dp_shard": 2}, model=small_moe_gpt(), options=fuser, recompute=["moe_act"])
    report = simulate(again.model_copy(update={"framework_version": "main 2026-08-22"}))
    assert report.status == "illegal"
    assert "requires the fused grouped MLP path" in report.problems[0].message
    same = [small.program_of("megatron", {}, model=small_moe_gpt(), options=given).columns.tolist()
            for given in (fuser, {})]
    assert same[0] == same[1]

# ---- hybrids that predict further tokens ----------------------------------------------------------------------------
LIGHT = {"config": "nemotron-3-tiny", "overrides": {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E",
                                                    "mtp_use_repeated_layer": True}}


def test_a_hybrid_predicts_further_tokens_in_the_main_branch() -> None:
    refused_with("illegal", "needs framework_version: main 2026-08-22", model=LIGHT)
    later = {"framework_version": "main 2026-08-22"}
    scenario = small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=LIGHT).model_copy(update=later)
    plain = small.scenario("megatron", {"dp_shard": 2, "ep": 2}).model_copy(update=later)
    peaks = [simulate(one).ranks[0].peak for one in (scenario, plain)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes > peaks[1].allocated_bytes
    staged = small.scenario("megatron", {"pp": 2}, model=LIGHT, pipeline={"layers": [3, 2]}).model_copy(update=later)
    assert simulate(staged).status == "ok"


@pytest.mark.parametrize(("preset", "told"), [("moonlight-16b-a3b", True), ("deepseek-v2-lite", True),
                                              ("deepseek-v3", False)])
def test_a_dropped_null_is_told(preset: str, told: bool) -> None:
    """AutoBridge 0.3.1 builds an inner rank of 512 where `q_lora_rank` is null."""
    report = place(small.scenario("megatron", {"dp_shard": 2}, model=preset))
    assert report.status == "ok"
    assert any(a.what == "model.q_lora_rank" and "512" in a.value for a in report.assumptions) == told


@pytest.mark.parametrize(("model", "tied"), [("deepseek-v2-lite", False), ("gpt-oss-20b", False), ("qwen3-8b", True)])
def test_bridges_that_ignore_a_tied_head(model: str, tied: bool) -> None:
    overrides = {"tie_word_embeddings": True, "num_hidden_layers": 2}
    report = place(small.scenario("megatron", {"dp_shard": 2}, model={"config": model, "overrides": overrides}))
    assert report.status == "ok"
    assert ("lm_head" not in report.ranks[0].at_rest) == tied
    assert any("is ignored" in a.value for a in report.assumptions if a.what == "model.tie_word_embeddings") != tied


def test_optimizer_instances_need_the_distributed_optimizer() -> None:
    refused_with("illegal", "Partial DistOpt cannot be used without DistOpt", {"dp_shard": 2, "dp_replicate": 2},
             options={"use_distributed_optimizer": False})


def test_experts_with_biases_are_not_cut_by_width() -> None:
    refused_with("illegal", "Bias in Moe is only supported when ETP==1", {"dp_shard": 2, "tp": 2}, model="gpt-oss-20b")
    assert place(small.scenario("megatron", {"dp_shard": 2, "tp": 2, "etp": 1}, model="gpt-oss-20b")).status == "ok"


@pytest.mark.parametrize(("targets", "status"), [(["linear_proj", "linear_fc2"], "ok"), (["linear_qkv"], "illegal")])
def test_a_rank_that_tp_does_not_divide(targets: list[str], status: str) -> None:
    """The first matrix of a row-parallel linear's pair is cut over its columns, not over the rank."""
    lora = {"rank": 3, "target_modules": targets}
    report = place(small.scenario("megatron", {"dp_shard": 2, "tp": 2}, model="llama-3.1-8b", method="lora", lora=lora))
    assert report.status == status


def test_adapters_of_experts_that_are_no_grouped_gemm() -> None:
    single = {"moe_grouped_gemm": False}
    for lora in ({"target_modules": ["linear_fc1"]}, {"exclude_modules": ["output_layer"]}):
        refused_with("error", "adapters of experts that are no grouped GEMM", {"dp_shard": 2}, options=single,
                 method="lora", lora={"rank": 4, **lora})
    given = {"rank": 4, "target_modules": ["linear_qkv"]}
    assert place(small.scenario("megatron", {"dp_shard": 2}, options=single, method="lora", lora=given)).status == "ok"
