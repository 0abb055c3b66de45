"""ZeRO: what rests in parts, what crosses the wires, what is refused, how options are read."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet, RankscopeError
from simcore.frameworks.deepspeed.partitions import places
from simcore.frameworks.deepspeed.strategy import PERSISTENT, ZeroStrategy
from simcore.frameworks.registry import at_rest_of
from simcore.placement.plan import AtRestBytes, Plan
from simcore.program.program import Program
from simcore.results.report import Report
from simcore.simulate import place, simulate

LLAMA = "llama-tiny"
STAGES = ("zero1", "zero2", "zero3")
NOTHING_KEPT = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
                "stage3_prefetch_bucket_size": 0}


def _exact(plan: Plan) -> dict[str, AtRestBytes]:
    return at_rest_of(plan.framework).exact(plan)


def plan_of(stage: str, ranks: int, rank: int = 0, **given: Any) -> Plan:
    return small.plan_of(stage, {"dp_shard": ranks}, rank=rank, model=given.pop("model", LLAMA), **given)


def summed(rest: dict[str, AtRestBytes]) -> tuple[int, int, int]:
    """(parameters, gradients, optimizer)."""
    return (sum(r.params_bytes for r in rest.values()), sum(r.grads_bytes for r in rest.values()),
            sum(r.optimizer_bytes for r in rest.values()))


# ---- closed forms: bytes of a parameter, 16-bit parameters and gradients, fp32 masters and two moments ---------------
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("stage", "whole", "cut"), [("zero1", (2, 0, 0), (0, 2, 12)), ("zero2", (2, 0, 0), (0, 2, 12)),
                                                      ("zero3", (0, 0, 0), (2, 2, 12))])
def test_each_stage_cuts_more(stage: str, whole: tuple[int, ...], cut: tuple[int, ...], ranks: int) -> None:
    """Just before the step, when ZeRO-1 has averaged gradients of its part and no others, like ZeRO-2."""
    plan = plan_of(stage, ranks)
    count = plan.graph.count()
    assert count % ranks == 0
    assert summed(plan.at_rest()) == tuple(w * count + c * count // ranks for w, c in zip(whole, cut, strict=True))


@pytest.mark.parametrize("ranks", [3, 7, 8])
@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_all_ranks_together_hold_every_state_once(stage: str, ranks: int) -> None:
    """Tensors that lie on a border are cut there, whatever the number of ranks."""
    found = [summed(_exact(plan_of(stage, ranks, rank))) for rank in range(ranks)]
    count = plan_of(stage, ranks).graph.count()
    assert sum(states for *_, states in found) == 12 * count
    assert sum(grads for _, grads, _ in found) == 2 * count
    assert max(states for *_, states in found) <= 12 * -(-count // ranks) + 12 * 2


@pytest.mark.parametrize("ranks", [3, 7, 64])
def test_zero3_pads_each_tensor_by_less_than_an_element_a_rank(ranks: int) -> None:
    plan = plan_of("zero3", ranks)
    stored = sum(p.padded for layer in plan.layers for p in plan.of_layer(layer) if p.spec.is_owned)
    tensors = sum(p.spec.is_owned for layer in plan.layers for p in plan.of_layer(layer))
    assert 0 <= stored * ranks - plan.graph.count() <= tensors * (ranks - 1)


def test_adapters_alone_have_states() -> None:
    for stage in STAGES:
        plan = plan_of(stage, 2, method="lora")
        trained = sum(p.used for layer in plan.layers for p in plan.of_layer(layer) if p.trainable)
        assert 0 < trained < plan.graph.count() // 4
        assert summed(plan.at_rest())[2] == 12 * trained // 2


# ---- traffic --------------------------------------------------------------------------------------------------------
def sent(report: Report, collective: str, phase: str = "") -> int:
    return sum(row.payload_bytes for row in report.ranks[0].traffic
               if row.collective == collective and phase in ("", row.phase))


@pytest.mark.parametrize("microbatches", [1, 3])
def test_traffic_is_that_of_the_paper(microbatches: int) -> None:
    """ZeRO-1 reduces once a step, the others every microbatch; they gather once a step, ZeRO-3 twice a microbatch."""
    reports = {stage: simulate(small.scenario(stage, {"dp_shard": 4}, model=LLAMA, microbatches=microbatches,
                                              options=NOTHING_KEPT if stage == "zero3" else None),
                               timed=False) for stage in STAGES}
    whole = 2 * plan_of("zero1", 4).graph.count()
    assert sent(reports["zero1"], "all_reduce") == whole
    assert sent(reports["zero2"], "all_reduce") == microbatches * whole
    assert sent(reports["zero3"], "reduce_scatter") == microbatches * whole
    assert sent(reports["zero1"], "all_gather") == sent(reports["zero2"], "all_gather") == whole
    assert sent(reports["zero3"], "all_gather") == 2 * microbatches * whole


# ---- the whole answer -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", STAGES)
def test_ranks_are_alike_and_one_can_be_asked_for(stage: str) -> None:
    asked = small.scenario(stage, {"dp_shard": 6}, model=LLAMA)
    report = simulate(asked)
    assert report.status == "ok"
    assert [rank.num_ranks for rank in report.ranks] == [6]
    assert [(one.axis, one.size) for one in report.communicators] == [("dp_shard", 6)]
    alone = simulate(asked, rank=5, timed=False)
    assert [rank.ranks for rank in alone.ranks] == [("5",)]
    assert place(asked).ranks[0].at_rest.keys() == alone.ranks[0].at_rest.keys()


@pytest.mark.parametrize(("stage", "given"), [
    ("zero1", {"options": {"contiguous_gradients": False}}), ("zero2", {"options": {"contiguous_gradients": False}}),
    ("zero2", {"offload": {"optimizer": "host"}})])
def test_ranks_whose_parts_have_other_tensors_are_simulated_each(stage: str, given: dict[str, Any]) -> None:
    """Gradients that are kept, and copies to the host, are of whole tensors that something of lies in the part."""
    asked = small.scenario(stage, {"dp_shard": 8}, model="llama-3.2-1b", microbatches=4, **given)
    report, single = simulate(asked), [simulate(asked, rank=rank).ranks[0] for rank in range(8)]
    assert [rank.peak for rank in report.ranks] == [rank.peak for rank in single]
    assert [rank.traffic for rank in report.ranks] == [rank.traffic for rank in single]
    assert len({str((rank.peak, rank.traffic)) for rank in single}) > 1
    assert any(a.what == "ranks of ZeRO-1 and 2" for a in report.assumptions)
    many = simulate(small.scenario(stage, {"dp_shard": 128}, model=LLAMA, **given))
    assert [rank.num_ranks for rank in many.ranks] == [128]


def test_ranks_meet_though_some_have_nothing_to_copy() -> None:
    """96 elements are trained: parts are of 2, and the last 16 ranks of 64 have padding alone."""
    model = {"config": "llama-tiny", "overrides": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512}}
    report = simulate(small.scenario("zero2", {"dp_shard": 64}, model=model, microbatches=2, method="lora",
                                     lora={"rank": 1, "target_modules": ["q_proj"]}, offload={"optimizer": "host"}))
    assert report.status == "ok", report.problems
    copied = [sum(row.calls for row in one.traffic if row.axis == "to_host") for one in report.ranks]
    assert [count > 0 for count in copied] == [True] * 48 + [False] * 16


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_a_million_ranks_take_no_longer_than_their_number(stage: str) -> None:
    """A bucket has a piece for each rank: they are summed once, not again for each."""
    start = time.process_time()
    report = simulate(small.scenario(stage, {"dp_shard": 2**18}, model=LLAMA))
    assert report.status == "ok", report.problems
    assert time.process_time() - start < 20


def test_each_stage_needs_less() -> None:
    peaks = []
    for stage in STAGES:
        report = simulate(small.scenario(stage, {"dp_shard": 8}, model="llama-3.2-3b", recompute="full", seq_len=512,
                                         options={"reduce_bucket_size": 10_000_000}), timed=False)
        assert report.ranks[0].peak is not None
        peaks.append(report.ranks[0].peak.allocated_bytes)
    assert peaks[0] > peaks[1] > peaks[2]


# ---- options --------------------------------------------------------------------------------------------------------
def strategy(stage: str, **options: Any) -> object:
    return small.prepared(stage, {"dp_shard": 2}, model=LLAMA, options=options)[1].strategy


def test_defaults_are_deepspeeds_own() -> None:
    """0.19.6 runtime/zero/config.py; overlap_comm is on for stage 3 alone."""
    assert strategy("zero1") == ZeroStrategy(1, "dp_shard", 500_000_000)
    assert strategy("zero2", overlap_comm=True) == ZeroStrategy(2, "dp_shard", 500_000_000, 2)
    assert strategy("zero3") == ZeroStrategy(3, "dp_shard", 500_000_000, 1, 50_000_000, 10**9, 10**9, 10**9)


@pytest.mark.parametrize("framework", ["ddp", "zero2", "fsdp2"])
def test_a_tied_head_has_no_adapter(framework: str) -> None:
    with pytest.raises(NotYet, match="an adapter of a tied lm_head"):
        small.prepared(framework, model="llama-3.2-3b", method="lora", lora={"target_modules": ["q_proj", "lm_head"]})


def test_sizes_are_written_as_deepspeed_writes_them() -> None:
    _, table = small.prepared("zero2", model=LLAMA, options={"reduce_bucket_size": 5e8})
    assert isinstance(table.strategy, ZeroStrategy)
    assert table.strategy.bucket == 500_000_000


@pytest.mark.parametrize("name", ["contiguous_gradients", "overlap_comm", "round_robin_gradients"])
@pytest.mark.parametrize("stage", STAGES)
def test_null_is_left_out(stage: str, name: str) -> None:
    asked, plain = (small.prepared(stage, {"dp_shard": 2}, model=LLAMA, options=options)[1].strategy
                    for options in ({name: None}, {}))
    assert asked == plain


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize(("optimizer", "states"), [({"name": "sgd"}, 4), ({"name": "sgd", "momentum": 0.9}, 8)])
def test_momentum_is_a_state(stage: str, optimizer: dict[str, Any], states: int) -> None:
    plan = plan_of(stage, 2, optimizer=optimizer)
    assert summed(plan.at_rest())[2] == states * plan.graph.count() // 2


def test_auto_is_what_transformers_fills_in() -> None:
    """transformers 5.23 integrations/deepspeed.py: hidden squared, 0.9 of it, ten times hidden."""
    job, table = small.prepared("zero3", {"dp_shard": 2}, model="llama-3.2-3b", options={
        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto"})
    assert isinstance(table.strategy, ZeroStrategy)
    assert (table.strategy.bucket, table.strategy.ahead) == (3072**2, int(0.9 * 3072**2))
    assert table.default("framework_options.stage3_param_persistence_threshold") == "30720"
    kept = {t.name for specs in job.graph.tensors for t in specs if table.policy(t).name == PERSISTENT}
    assert kept
    assert all("norm" in name or name == "weight" for name in kept)


HOSTED: dict[str, Any] = {"offload": {"optimizer": "host"}}


@pytest.mark.parametrize(("stage", "mesh", "given", "kind", "told"), [
    ("zero2", {"dp_shard": 2, "pp": 2}, {}, IllegalLayout, "DeepSpeed's PipelineModule"),
    ("zero2", {"dp_shard": 2, "dp_replicate": 2}, {}, IllegalLayout, "stage 2 cuts over all ranks"),
    ("zero3", {"dp_shard": 2, "dp_replicate": 2}, {}, IllegalLayout, "are scattered over all ranks"),
    ("zero3", {"dp_shard": 6}, {"options": {"zero_hpz_partition_size": 4}}, IllegalLayout, "6 is not divisible by 4"),
    ("zero3", {"dp_shard": 4}, {"options": {"zero_hpz_partition_size": 2}, "offload": {"params": "host"}}, NotYet,
     "second parts of parameters on the host"),
    ("zero2", {"dp_shard": 4}, {"options": {"zero_hpz_partition_size": 2}}, InputError, "zero_hpz_partition_size"),
    ("zero1", {}, {"precision": {"main_grads": "fp32"}}, NotYet, "fp32 under zero1"),
    ("zero1", {}, {"precision": {"compute": "fp32"}}, NotYet, "fp32 under zero1"),
    ("zero2", {}, {"offload": {"params": "host"}}, IllegalLayout, "offload_param is valid only with stage 3"),
    ("zero3", {}, {"offload": {"gradients": "host"}}, IllegalLayout, "gradients go to the CPU with offload_optimizer"),
    ("zero3", {}, {"offload": {"params": "nvme"}}, NotYet, "nvme under zero3"),
    ("zero3", {}, {"offload": {"optimizer": {"space": "host", "fraction": 0.5}}}, NotYet, "`ratio`"),
    ("zero3", {}, {"offload": {"activations": "host"}}, NotYet, "activations outside the device under zero3"),
    ("zero3", {}, {"options": {"offload_param": {"pin_memory": True}}}, InputError, "changes nothing without"),
    ("zero2", {}, HOSTED | {"options": {"offload_optimizer": {"buffer_count": 4}}}, InputError, "is about NVMe alone"),
    ("zero2", {}, HOSTED | {"options": {"offload_optimizer": {"pinned": True}}}, InputError, "unknown option 'pinned'"),
    ("zero2", {}, HOSTED | {"options": {"offload_optimizer": {"pin_memory": 1}}}, InputError, "expected true or false"),
    ("zero2", {}, HOSTED | {"optimizer": {"name": "sgd"}}, IllegalLayout, "either use DeepSpeedCPUAdam"),
    ("zero2", {}, HOSTED | {"topology": "dgx-spark"}, IllegalLayout, "host and device are the same 128.00 GiB"),
    ("zero2", {}, {"options": {"stage3_max_live_parameters": 1}}, InputError, "stage3_max_live_parameters"),
    ("zero2", {}, {"options": {"mics_shard_size": 2}}, InputError, "unknown option 'mics_shard_size'"),
    ("zero3", {}, {"options": {"mics_shard_size": 2}}, IllegalLayout, "(MiCS): gradients are scattered over all ranks"),
    ("zero2", {}, {"options": {"reduce_bucket_size": 0.5}}, InputError, "reduce_bucket_size: expected"),
    ("zero1", {}, {"optimizer": {"moments": "bf16"}}, NotYet, "bf16 under zero1"),
    ("zero1", {}, {"optimizer": {"moments": "int4", "implementation": "bitsandbytes"}}, IllegalLayout,
     "Amount of optimizer bits not supported: int4"),
    ("zero1", {}, {"optimizer": {"paged": True, "implementation": "torchao"}}, NotYet, "paged states of torchao"),
    ("zero2", {}, {"method": "lora", "lora": {"expert_adapters": "shared"}}, InputError, "a model without experts"),
])
def test_what_is_refused(stage: str, mesh: dict[str, int], given: dict[str, Any], kind: type[RankscopeError],
                         told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        small.prepared(stage, mesh, model=LLAMA, **given)


@pytest.mark.parametrize(("name", "told"), [("zero4", "no stage 4 of ZeRO"), ("deepspeed_stage_7", "no stage 7"),
                                            ("deepspeed-0", "is framework zero0"), ("zero-3", "is framework zero3")])
def test_stages_that_do_not_exist_are_told_by_rule(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        small.prepared(name, model=LLAMA)
    assert "ZeroStageEnum" in str(caught.value)


# ---- offload --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("stage", "away", "device", "host"), [
    ("zero1", {"optimizer": "host"}, (2, 0, 0), (0, 4, 12)), ("zero2", {"optimizer": "host"}, (2, 0, 0), (0, 4, 12)),
    ("zero3", {"optimizer": "host"}, (2 / 4, 0, 0), (0, 6, 12)),
    ("zero3", {"params": "host"}, (0, 2 / 4, 12 / 4), (2, 0, 0)),
    ("zero3", {"optimizer": "host", "params": "host"}, (0, 0, 0), (2, 6, 12))])
def test_what_lies_on_the_host(stage: str, away: dict[str, str], device: tuple[float, ...],
                               host: tuple[int, ...]) -> None:
    """Bytes an element: of the model on each device, of the rank's quarter on the host."""
    plan = plan_of(stage, 4, offload=away)
    count = plan.graph.count()
    assert summed(plan.at_rest()) == tuple(int(each * count) for each in device)
    assert summed(at_rest_of(plan.framework).exact(plan))[:2] == tuple(int(each * count) for each in device[:2])
    found: dict[str, int] = dict.fromkeys(("parameters", "gradients", "optimizer states"), 0)
    for layer in plan.layers:
        for what, _, num_bytes in (one for placed in plan.of_layer(layer) for one in placed.elsewhere):
            found[what] += num_bytes
    assert tuple(found.values()) == tuple(each * count // 4 for each in host)


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_an_optimizer_on_the_host_needs_nothing_on_the_device_in_its_step(stage: str) -> None:
    given: dict[str, Any] = {"model": LLAMA, "microbatches": 2}
    here, away = (small.program_of(stage, {"dp_shard": 4}, **given, offload={"optimizer": where})
                  for where in ("none", "host"))
    assert small.postings(here, "fp32_grad")
    assert not small.postings(away, "fp32_grad")
    assert not [size for *_, size in small.postings(away, "grads_in_partition") if size]
    assert not [size for *_, size in small.postings(away, "grad_partitions") if size]


# ---- hpZ, the order of parts ----------------------------------------------------------------------------------
def program(**given: Any) -> Program:
    return small.program_of("zero3", model=LLAMA, **given)


def test_hpz_gathers_within_the_node_once_parts_are_there() -> None:
    """The first forward is over all ranks; what comes after is over the small group, in as many bytes."""
    given: dict[str, Any] = {"mesh": {"dp_shard": 8}, "microbatches": 2, "options": NOTHING_KEPT}
    plain = small.calls(program(**given), "all_gather")
    hpz = small.calls(program(**given | {"options": NOTHING_KEPT | {"zero_hpz_partition_size": 4}}), "all_gather")
    assert [size for *_, size in plain] == [size for *_, size in hpz]
    small_group = [axis == "dp_shard/4" for axis, *_ in hpz]
    first = small_group.index(True)
    assert not any(small_group[:first])
    assert all(small_group[first:-1])  # the last one is the step's
    assert sum(size for (_, _, size), inside in zip(hpz, small_group, strict=True) if inside) == 3 * 2 * plan_of(
        "zero3", 8).graph.count()


def test_hpz_keeps_a_second_part_from_forward_to_the_step() -> None:
    made = program(mesh={"dp_shard": 8}, options=NOTHING_KEPT | {"zero_hpz_partition_size": 4})
    rows = small.postings(made, "secondary_part")
    assert sum(size for *_, size in rows if size > 0) == 2 * plan_of("zero3", 8).graph.count() // 4
    assert {phase for _, phase, size in rows if size > 0} == {"forward"}
    assert {phase for _, phase, size in rows if size < 0} == {"optimizer"}


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_round_robin_deals_tensors_out(stage: str) -> None:
    """Ranks together hold the same; what lies where is another thing."""
    given: dict[str, Any] = {"options": {"round_robin_gradients": True}}
    dealt = [_exact(plan_of(stage, 4, rank, **given)) for rank in range(4)]
    plain = [_exact(plan_of(stage, 4, rank)) for rank in range(4)]
    assert sum(summed(rest)[2] for rest in dealt) == sum(summed(rest)[2] for rest in plain)
    assert [rest["attention"] for rest in dealt] != [rest["attention"] for rest in plain]
    first = [key for key, (start, _) in places(plan_of(stage, 4, **given)).items() if start == 0]
    assert list(places(plan_of(stage, 4, **given)))[1] == list(places(plan_of(stage, 4)))[4]
    assert first == [(0, 0)]


def test_fp16_looks_for_infinities_in_all_gradients_at_once() -> None:
    """A mask and absolute values; bf16 does not look (0.19.6 stage3.py, _overflow_check_and_loss_scale_update)."""
    count = plan_of("zero3", 4).graph.count()
    plan = plan_of("zero3", 4)
    largest = max(placed.padded for layer in plan.layers for placed in plan.of_layer(layer))
    for compute, taken in (("fp16", 3 * count // 4), ("bf16", 8 * largest)):
        made = program(mesh={"dp_shard": 4}, precision={"compute": compute})
        assert small.postings(made, "grad_norm")[0][2] == max(taken, 8 * largest)
