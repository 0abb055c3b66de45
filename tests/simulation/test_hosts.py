"""Memory of hosts in each phase, worked out by hand from the rule that its source states."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks import setup
from simcore.frameworks.registry import framework_adapter
from simcore.placement.checkpoint_files import Files, Transfer
from simcore.placement.fold import RankClass
from simcore.placement.framework import Framework, Rule
from simcore.placement.job import Job
from simcore.placement.layout import TensorLayout
from simcore.placement.mesh import Mesh
from simcore.results.report import Host, HostPhase, Report
from simcore.simulate import place, simulate
from simcore.simulation.hosts import _windows, model_bytes

DENSE = "llama-tiny"


def run(framework: str, mesh: dict[str, int], **given: Any) -> Report:
    asked = small.scenario(framework, mesh, **given)
    report = simulate(asked, timed=False)
    assert report.status == "ok", report.problems
    return report


def phase(name: str, framework: str, mesh: dict[str, int], *, load: str = "auto", save: str = "auto",
          **given: Any) -> HostPhase:
    asked = small.scenario(framework, mesh, **given)
    chosen = asked.checkpoint.model_copy(update={"load": load, "save": save})
    report = simulate(asked.model_copy(update={"checkpoint": chosen}), timed=False)
    assert report.host is not None, report.problems
    return next(one for one in report.host.phases if one.phase == name)


def whole(framework: str, mesh: dict[str, int], *, trained_only: bool = False, **given: Any) -> int:
    job, table = small.prepared(framework, mesh, **given)
    return model_bytes(job.graph, table, trained_only=trained_only)


def test_a_models_bytes_are_those_of_its_ranks_together() -> None:
    alone = place(small.scenario("fsdp2", {"dp_shard": 1}, model=DENSE)).ranks[0]
    assert whole("fsdp2", {"dp_shard": 4}, model=DENSE) == sum(c.params_bytes for c in alone.at_rest.values())


# ---- reading --------------------------------------------------------------------------------------------------------
def test_where_every_rank_reads_each_holds_the_model() -> None:
    mesh = {"dp_shard": 16}
    size = whole("fsdp2", mesh, model=DENSE)
    found = phase("load", "fsdp2", mesh, model=DENSE)
    assert found.host_bytes == 8 * size == found.by_owner["whole model"]
    assert phase("load", "fsdp2", {"dp_shard": 4}, model=DENSE).host_bytes == 4 * size
    assert "low_cpu_mem_usage" in found.source


def test_where_rank_0_reads_one_does() -> None:
    mesh = {"dp_shard": 16}
    assert phase("load", "fsdp2", mesh, load="rank0", model=DENSE).host_bytes == whole("fsdp2", mesh, model=DENSE)


@pytest.mark.parametrize("framework", small.FRAMEWORKS)
def test_where_each_reads_its_own_a_tensor_is_there_at_a_time(framework: str) -> None:
    job, table = small.prepared(framework, {"dp_shard": 2})
    embedding = next(t for kind in job.graph.tensors for t in kind if t.component == "embedding")
    width = {"bf16": 2, "fp32": 4}[table.policy(embedding).at_rest.dtype]
    found = phase("load", framework, {"dp_shard": 2}, load="sharded")
    assert found.host_bytes == 2 * width * embedding.shape[0] * embedding.shape[1]


def test_experts_are_read_one_by_one() -> None:
    found = phase("load", "automodel", {"dp_shard": 4, "ep": 2}, model="nemotron-3-nano-30b-a3b")
    assert found.host_bytes == 4 * 131072 * 2688 * 2  # the embedding; all experts of a layer are nearly twice that


def test_nothing_is_read_where_nobody_reads() -> None:
    found = phase("load", "megatron", {"dp_shard": 2}, load="none")
    assert (found.host_bytes, found.by_owner, found.source) == (0, {}, "")


def test_a_unit_is_whole_on_the_device_before_it_is_cut() -> None:
    by_load = {load: phase("load", "fsdp2", {"dp_shard": 8}, load=load, model="llama-3.2-3b").device_bytes
               for load in ("every_rank", "rank0", "sharded")}
    assert by_load["sharded"] < by_load["rank0"] <= by_load["every_rank"]


def test_before_the_first_step_there_are_no_moments() -> None:
    given = {"model": "llama-3.2-3b", "load": "sharded"}
    before, after = (phase(name, "fsdp2", {"dp_shard": 1}, save="none", **given) for name in ("load", "save"))
    params = whole("fsdp2", {"dp_shard": 1}, model="llama-3.2-3b")
    assert after.device_bytes - before.device_bytes == pytest.approx(2 * params, rel=0.04)


# ---- writing --------------------------------------------------------------------------------------------------------
def test_a_gather_puts_the_model_on_the_first_host() -> None:
    mesh = {"dp_shard": 16}
    assert phase("save", "fsdp2", mesh, model=DENSE).by_owner == {"whole model": whole("fsdp2", mesh, model=DENSE)}
    lora = phase("save", "fsdp2", mesh, model=DENSE, method="lora")
    assert lora.host_bytes == whole("fsdp2", mesh, model=DENSE, method="lora", trained_only=True)
    assert 0 < lora.host_bytes < whole("fsdp2", mesh, model=DENSE) / 10


def test_automodel_holds_its_shards_twice() -> None:
    report = run("automodel", {"dp_shard": 4, "ep": 4}, model="nemotron-3-nano-30b-a3b")
    assert report.host is not None
    mine = sum(c.params_bytes for rank in report.ranks for c in rank.at_rest.values()) * 4 // len(report.ranks)
    assert report.host.phases[2].host_bytes == 2 * mine


def test_automodel_gathers_adapters_or_holds_them_everywhere() -> None:
    given: dict[str, Any] = {"method": "lora"}
    size = whole("automodel", {"dp_shard": 4}, trained_only=True, **given)
    assert phase("save", "automodel", {"dp_shard": 4}, **given).host_bytes == size
    assert phase("save", "automodel", {"dp_shard": 4, "ep": 4}, **given).host_bytes == 4 * size


@pytest.mark.parametrize("options", [{}, {"use_distributed_optimizer": False}])
def test_megatron_copies_each_byte_that_is_written_once(options: dict[str, Any]) -> None:
    # One node: all ranks together write every parameter in bf16 and three fp32 states of it, once.
    mesh = {"dp_shard": 4, "ep": 2}
    job, table = small.prepared("megatron", mesh, options=options)
    numel = model_bytes(job.graph, table) // 2
    found = phase("save", "megatron", mesh, options=options)
    assert found.host_bytes == pytest.approx(numel * (2 + 12), rel=1e-3)


def test_megatron_writes_adapters_alone() -> None:
    full, lora = (phase("save", "megatron", {"dp_shard": 4}, method=method).host_bytes for method in ("full", "lora"))
    assert 0 < lora < full / 10


def test_zero_3_gathers_what_it_may() -> None:
    """Without the option's gather the Trainer writes parts; adapters are gathered whatever it says."""
    given: dict[str, Any] = {"model": DENSE, "options": {"stage3_gather_16bit_weights_on_model_save": False}}
    assert phase("save", "zero3", {"dp_shard": 2}, **given).host_bytes == 0
    assert phase("save", "zero3", {"dp_shard": 2}, method="lora", **given).host_bytes > 0
    asked = small.scenario("zero3", {"dp_shard": 2}, **given)
    report = simulate(asked.model_copy(update={"checkpoint": asked.checkpoint.model_copy(update={"save": "full"})}))
    assert report.status == "illegal"
    assert "Cannot get 16bit model weights" in report.problems[0].message


# ---- what rests on the host -----------------------------------------------------------------------------------------
def moved(layout: TensorLayout, space: str) -> TensorLayout:
    return dataclasses.replace(layout, space=space)


@pytest.mark.parametrize("space", ["host", "host_pinned"])
def test_spaces_on_the_host_are_summed(monkeypatch: pytest.MonkeyPatch, space: str) -> None:
    adapter = framework_adapter("fsdp2")

    def offloaded(job: Job) -> Framework:
        framework = adapter.table(job)
        rules = tuple(Rule(rule.matches, dataclasses.replace(
            rule.policy, at_rest=moved(rule.policy.at_rest, space), grad=moved(rule.policy.grad, space),
            optimizer_states=tuple((name, moved(layout, space)) for name,
                                   layout in rule.policy.optimizer_states))) for rule in framework.rules)
        return dataclasses.replace(framework, rules=rules, files=Files())

    plain = place(small.scenario("fsdp2", {"dp_shard": 4}, model=DENSE)).ranks[0].at_rest.values()
    monkeypatch.setattr(setup, "asked_adapter", lambda scenario: dataclasses.replace(adapter, write_table=offloaded))
    report = run("fsdp2", {"dp_shard": 4}, model=DENSE)
    assert report.host is not None
    load, step, save = report.host.phases
    params, grads, states = (4 * sum(getattr(c, name) for c in plain)
                             for name in ("params_bytes", "grads_bytes", "optimizer_bytes"))
    expected = {"parameters": params, "gradients": grads, "optimizer states": states}
    assert load.by_owner.keys() == {"parameters"}
    assert save.by_owner.keys() == {"parameters", "optimizer states"}
    if space == "host":
        assert step.by_owner == expected
    else:  # every tensor in a power of two
        assert all(size < step.by_owner[name] < 2 * size for name, size in expected.items())


def test_an_offloaded_optimizer_lies_on_the_host_with_pinned_gradients() -> None:
    """12 bytes of each parameter, apart from padding of buffers, and 4 of its gradient, in powers of two."""
    report = run("megatron", {"dp_shard": 2}, model=DENSE, offload={"optimizer": "host"})
    assert report.host is not None
    load, step, save = (phase.by_owner for phase in report.host.phases)
    numel = sum(c.num_params for c in report.ranks[0].at_rest.values())
    assert step["optimizer states"] == save["optimizer states"] == pytest.approx(12 * numel, rel=1e-3)
    assert 4 * numel <= step["gradients"] < 8 * numel
    assert not {"optimizer states", "gradients"} & load.keys()


# ---- which hosts ----------------------------------------------------------------------------------------------------
def test_the_fullest_host_is_found() -> None:
    classes = (RankClass(0, 0, 6, np.array([0, 1, 2]), 4), RankClass(0, 3, 2, np.array([3]), 4))
    assert [(first, found.tolist()) for first, found in _windows(Mesh(dp_shard=8), classes, 8)] == [
        (0, [0, 0, 0, 1, 0, 0, 0, 1])]


def test_a_large_job_is_looked_at_as_far_as_it_repeats() -> None:
    mesh = Mesh(pp=2, dp_shard=2**16)
    classes = tuple(RankClass(stage, stage << 16, 2**16, np.arange(4), 4) for stage in range(2))
    assert [(first, len(found)) for first, found in _windows(mesh, classes, 8)] == [(0, 8), (2**16, 8)]


def test_a_host_that_is_too_small_is_told() -> None:
    report = run("fsdp2", {"dp_shard": 16}, model={"config": "llama-3-70b", "overrides": {}}, seq_len=64)
    assert isinstance(report.host, Host)
    assert report.host.capacity_bytes == 2 * 10**12
    assert report.host.phases[0].host_verdict == "oom"  # 8 ranks x 282 GB in fp32
    assert report.host.phases[2].host_verdict == "fits"
    told = next(a for a in report.assumptions if a.what == "host_memory")
    assert "datasheet" in told.source


# ---- durations: by hand at 6.5 and 3.5 GB/s of the assumed drive, and a DGX H100's links ---------------------------
def test_a_file_is_read_once_on_a_host_and_crosses_every_link() -> None:
    """All ranks read the same file; a unit is on each device whole, before FSDP2 cuts it."""
    mesh = {"dp_shard": 16}
    size = whole("fsdp2", mesh, model=DENSE)
    assert phase("load", "fsdp2", mesh, model=DENSE).seconds == pytest.approx(size / 6.5e9)
    sharded = phase("load", "fsdp2", mesh, model=DENSE, load="sharded")
    assert sharded.seconds == pytest.approx(size / 2 / 6.5e9, rel=0.01)  # half of the ranks are on each host


def test_one_rank_that_writes_all_uses_its_hosts_drive_alone() -> None:
    size = whole("fsdp2", {"dp_shard": 16}, model=DENSE)
    assert phase("save", "fsdp2", {"dp_shard": 16}, model=DENSE).seconds == pytest.approx(size / 3.5e9)
    for framework, mesh in (("ddp", {"dp_replicate": 16}), ("zero3", {"dp_shard": 16})):
        size = whole(framework, mesh, model=DENSE)
        assert phase("save", framework, mesh, model=DENSE).seconds == pytest.approx(size / 3.5e9)


def test_megatron_writes_states_too_and_divides_them() -> None:
    """Parameters of 2 bytes, and of the optimizer 12 more, over the ranks that hold them."""
    one, two = (phase("save", "megatron", {"dp_shard": ranks}, model=DENSE).seconds for ranks in (8, 16))
    assert one is not None
    assert two == pytest.approx(one / 2, rel=0.01)
    assert one * 3.5e9 == pytest.approx(7 * whole("megatron", {"dp_shard": 8}, model=DENSE), rel=0.01)


def test_a_phase_without_files_takes_no_time_of_its_own() -> None:
    assert phase("load", "fsdp2", {"dp_shard": 2}, load="none", model=DENSE).seconds is None
    assert phase("first_step", "fsdp2", {"dp_shard": 2}, model=DENSE).seconds is None


def test_one_rank_says_nothing_about_its_host() -> None:
    assert simulate(small.scenario("fsdp2", {"dp_shard": 4}), rank=1, timed=False).host is None


def test_ways_that_a_framework_does_not_have_are_refused() -> None:
    asked = small.scenario("megatron", {"dp_shard": 2})
    report = simulate(asked.model_copy(update={"checkpoint": asked.checkpoint.model_copy(update={"load": "rank0"})}))
    assert report.status == "error"
    assert "rank0 under megatron" in report.problems[0].message


def test_every_way_has_a_source() -> None:
    for framework in small.FRAMEWORKS:
        for given in ({}, {"method": "lora"})[:1 if framework == "megatron_fsdp" else 2]:  # LoRA: not yet
            files = small.prepared(framework, {"dp_shard": 4}, **given)[1].files
            for transfer in (files.load, files.save):
                assert isinstance(transfer, Transfer)
                assert ".py" in transfer.source


@pytest.mark.parametrize("framework", ["zero3", "automodel"])
def test_what_is_packed_is_whole_on_a_device_before_it_is_cut(framework: str) -> None:
    """However many ranks there are; without packing a rank has its part, and a model is made on the meta device."""
    def loaded(ranks: int, method: str) -> int:
        return phase("load", framework, {"dp_shard": ranks}, model="llama-3.2-3b", method=method).device_bytes

    assert loaded(8, "qlora") > 0.97 * loaded(2, "qlora")
    assert loaded(8, "lora") < 0.6 * loaded(2, "lora")


def test_where_nothing_is_cut_reading_what_is_packed_takes_no_more() -> None:
    mine, alone = (phase("load", framework, mesh, model="llama-3.2-3b", method="qlora").device_bytes
                   for framework, mesh in (("zero2", {"dp_shard": 4}), ("ddp", {"dp_replicate": 4})))
    assert mine == pytest.approx(alone, rel=0.02)
