"""`fully_shard`'s own reading of `reshard_after_forward` (torch 2.13 `_fsdp_init.py`)."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulate import check, simulate


def _ran(reshard: object, mesh: dict[str, int] | None = None) -> Report:
    report = simulate(small.scenario("fsdp2", mesh or {"dp_shard": 8}, options={"reshard_after_forward": reshard}))
    assert report.status == "ok", report.problems
    return report


def gathered_bytes(report: Report, phase: str, expert: bool) -> int:
    axis = "expert_dp" if expert else "dp_shard_cp"
    return sum(t.payload_bytes for t in report.ranks[0].traffic
               if t.collective == "all_gather" and t.phase == phase and t.axis.split("/")[0] == axis)


@pytest.mark.parametrize(("number", "same"), [(1, False), (8, True)])
def test_a_group_of_one_or_of_all_is_a_flag(number: int, same: bool) -> None:
    assert _ran(number).ranks == _ran(same).ranks


def test_a_number_that_is_no_factor_is_refused() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, options={"reshard_after_forward": 3}))
    assert report.status == "illegal"
    assert "should be a factor of 8, not 3" in report.problems[0].message


@pytest.mark.parametrize("expert", [False, True])
def test_a_smaller_group_gathers_the_same_bytes_again(expert: bool) -> None:
    """Four ranks share experts: all of them are the group."""
    report = _ran(4, {"dp_shard": 8, "ep": 2})
    assert gathered_bytes(report, "backward", expert) == gathered_bytes(report, "forward", expert) > 0


@pytest.mark.parametrize(("reshard", "told"), [
    (2, "Resharding to smaller mesh is not supported for DTensor parameters yet: 4 ranks share experts"),
    (8, "should be a factor of 4, not 8")])
def test_experts_are_kept_in_no_smaller_group_than_theirs(reshard: int, told: str) -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8, "ep": 2}, options={"reshard_after_forward": reshard}))
    assert report.status == "illegal"
    assert told in report.problems[0].message


def test_slices_of_experts_that_are_no_units_have_no_group() -> None:
    options = {"reshard_after_forward": 4, "experts": "ignored"}
    assert simulate(small.scenario("fsdp2", {"dp_shard": 8, "ep": 4}, options=options)).status == "ok"


@pytest.mark.parametrize(("last", "always", "count"), [
    (False, True, 1), (True, False, 1), (None, True, 2), (None, False, 0)])
def test_what_the_last_layer_does_its_experts_do(last: bool | None, always: bool, count: int) -> None:
    """`set_reshard_after_forward` is recursive; two layers of five have experts, the last is one of them."""
    options = {"reshard_after_forward": always} | ({} if last is None else {"set_last_reshard": last})
    report = simulate(small.scenario("fsdp2", {"dp_shard": 4, "ep": 2}, options=options))
    again = [t for t in report.ranks[0].traffic if (t.axis, t.phase) == ("expert_dp", "backward")]
    assert sum(t.calls for t in again if t.collective == "all_gather") == count


def test_a_tied_head_and_its_embedding_are_one_unit() -> None:
    tied = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
    apart = check(small.scenario("fsdp2", {"dp_shard": 2}, model=tied, options={"wrap": "separate_embedding_head"}))
    assert apart.status == "illegal"
    assert "'lm_head.weight' is shared with a parameter already managed by another" in apart.problems[0].message
    assert check(small.scenario("fsdp2", {"dp_shard": 2}, model=tied)).status == "ok"


# ---- refusals and defaults -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("given", "status", "told"), [
    ({"mesh": {"dp_shard": 2, "ep": 2}, "model": "llama-tiny"}, "illegal", "a model without experts"),
    ({"optimizer": {"implementation": "bitsandbytes"}}, "illegal", "does not have a sharding strategy"),
    ({"optimizer": {"moments": "int8", "paged": True}}, "error", "not yet: paged states of torchao"),
    ({"optimizer": {"moments": "int8", "name": "sgd"}}, "error", "not yet: sgd with states of 8 bits"),
    ({"optimizer": {"name": "muon", "moments": "int8"}}, "error", "not yet: muon with states of 8 bits"),
    ({"optimizer": {"name": "muon"}, "method": "lora"}, "error", "not yet: muon under fsdp2"),
    ({"optimizer": {"momentum": 0.9}}, "error", "not yet: momentum of adamw"),
    ({"optimizer": {"implementation": "torchao"}}, "error", "not yet: torchao under fsdp2"),
    ({"optimizer": {"moments": "fp8"}}, "error", "optimizer.moments in fp8"),
    ({"precision": {"params": "fp8"}}, "error", "precision.params in fp8"),
    ({"precision": {"grad_reduce": "fp8"}}, "error", "precision.grad_reduce in fp8"),
    ({"method": "lora", "lora": {"dtype": "fp8"}}, "error", "lora.dtype in fp8"),
    ({"method": "lora", "lora": {"expert_adapters": "per_expert"}}, "error", "not yet: per_expert under fsdp2"),
    ({"method": "lora", "lora": {"expert_adapters": "shared"}}, "error", "not yet: shared under fsdp2"),
    ({"method": "lora", "lora": {"exclude_modules": ["*q_proj"]}}, "error", "patterns (*q_proj) under fsdp2"),
    ({"lengths": "packed"}, "error", "not yet: packed sequences in the Mamba layers")])
def test_what_is_refused(given: dict[str, Any], status: str, told: str) -> None:
    mesh = given.get("mesh", {"dp_shard": 2})
    report = simulate(small.scenario("fsdp2", mesh, **{key: value for key, value in given.items() if key != "mesh"}))
    assert report.status == status
    assert told in report.problems[0].message


@pytest.mark.parametrize("implementation", ["automodel", "megatron"])
def test_other_layers_do_not_run_here(implementation: str) -> None:
    data = small.scenario("fsdp2").normalised() | {"implementation": implementation}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert f"not yet: the layers of {implementation} under fsdp2" in report.problems[0].message


def test_adapters_of_experts_may_be_refused_by_name() -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, method="lora", lora={"expert_adapters": "none"})
    assert simulate(asked).status == "ok"


def test_ignored_experts_have_the_moments_that_were_asked_for() -> None:
    def moments(**given: Any) -> int:
        plan = small.plan_of("fsdp2", {"dp_shard": 4, "ep": 2}, options={"experts": "ignored"}, **given)
        return sum(size for layer in plan.layers for p in plan.of_layer(layer) if p.policy.name == "experts, ignored"
                   for _, size in p.states)

    assert moments(optimizer={"moments": "fp32"}) == 2 * moments() > 0


def test_defaults_are_listed() -> None:
    def listed(**given: Any) -> dict[str, str]:
        report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, **given))
        return {a.what: a.value for a in report.assumptions if a.kind == "default"}

    found = listed()
    assert found["framework_options.reshard_after_forward"] == "true for layers, false for the root"
    assert found["training.optimizer.moments"] == "as each parameter is stored"
    given = listed(options={"reshard_after_forward": False}, optimizer={"moments": "bf16"})
    assert not [key for key in given if "reshard" in key or "moments" in key]

# ---- on the host -----------------------------------------------------------------------------------------------------
HOST = {"params": "host", "gradients": "host", "optimizer": "host"}


def test_on_the_host_nothing_rests_on_the_device() -> None:
    here, away = (small.plan_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=offload)
                  for offload in ({}, HOST))
    parts = away.at_rest()
    assert {(p.params_bytes, p.grads_bytes, p.optimizer_bytes) for p in parts.values()} == {(0, 0, 0)}
    whole = sum(p.num_params for p in here.at_rest().values())
    assert sum(p.num_params for p in parts.values()) == whole
    assert away.elsewhere() == {"host_pinned": 8 * whole, "host": 8 * whole}
    assert here.elsewhere() == {}


def test_the_step_on_the_host_needs_nothing_of_the_device() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=HOST)
    assert [amount for *_, amount in small.postings(program, "sqrt_exp_avg_sq") if amount] == []


def test_peaks_are_lower_by_what_went_to_the_host() -> None:
    here, away = (simulate(small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", offload=offload))
                  for offload in ({}, HOST))
    rest = sum(c.params_bytes + c.optimizer_bytes for c in here.ranks[0].at_rest.values())
    peaks = [report.ranks[0].peak for report in (here, away)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes - peaks[1].allocated_bytes > rest // 2
    assert peaks[1].by_category.get("opt_state", 0) == peaks[1].by_category.get("sharded_param", 0) == 0
    assert "outside the device, host_pinned" in {a.what for a in away.assumptions}


def test_inputs_of_replayed_layers_wait_on_the_host() -> None:
    """At its peak the device holds none of 16, or that of the layer that runs; the peak may be elsewhere then."""
    more: dict[str, Any] = {"model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": 16}},
                            "recompute": "full", "seq_len": 4096}
    here, away = (simulate(small.scenario("fsdp2", {"dp_shard": 2}, offload={"activations": where}, **more),
                           timed=False) for where in ("none", "host"))
    hidden = small.prepared("fsdp2", **more)[0].graph.architecture.hidden
    one, peaks = 4096 * hidden * 2, [report.ranks[0].peak for report in (here, away)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert (peaks[0].host_bytes, peaks[1].host_bytes) == (0, 16 * one)
    assert peaks[0].by_category["activation"] - peaks[1].by_category["activation"] >= 15 * one
    assert 0 < peaks[0].allocated_bytes - peaks[1].allocated_bytes < 16 * one
    assert away.host is not None
    assert away.host.phases[1].by_owner == {"activations": 2 * 16 * one}
    assert "time of offload" in {a.what for a in away.assumptions}


@pytest.mark.parametrize(("offload", "mesh", "status", "told"), [
    ({"params": "host"}, {"dp_shard": 2}, "illegal", "all three and whole"),
    ({"optimizer": "host"}, {"dp_shard": 2}, "illegal", "all three and whole"),
    (HOST | {"params": {"space": "host", "fraction": 0.5}}, {"dp_shard": 2}, "illegal", "all three and whole"),
    ({"activations": "host"}, {"dp_shard": 2}, "error", "with recompute: full"),
    ({"activations": "nvme"}, {"dp_shard": 2}, "error", "nvme under fsdp2"),
    (dict.fromkeys(HOST, "nvme"), {"dp_shard": 2}, "error", "nvme under fsdp2"),
    (HOST, {}, "error", "not sharded")])
def test_what_is_refused_of_offload(offload: dict[str, Any], mesh: dict[str, int], status: str, told: str) -> None:
    report = simulate(small.scenario("fsdp2", mesh, offload=offload))
    assert report.status == status
    assert told in report.problems[0].message


def test_fp32_parameters_under_a_policy_are_no_fp32_around_fp8() -> None:
    """They rest in fp32 and are gathered in bf16: what lies between fp8 linears is bf16."""
    asked = small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", options={"compile": True}, recompute="full",
                           precision={"params": "fp32", "compute": "fp8"})
    _, table = prepare(asked.model_copy(update={"implementation": "torchtitan"}))
    assert table.compute_dtype == "bf16"
