"""Rates of a step: whose TFLOP/s, of which peak, what bounds it, what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import small
from simcore.hardware.topology import load_topology
from simcore.inputs.scenario import Scenario
from simcore.models.flops import CONVENTIONS, Asked
from simcore.results.report import StepTime
from simcore.simulate import simulate
from simcore.timing.throughput import cost

H100 = load_topology("dgx-h100")


def time_of(asked: Scenario) -> StepTime:
    report = simulate(asked)
    assert report.time is not None, report.problems
    return report.time


def flops_of_a_token(time: StepTime) -> float:
    return time.model_tflops_per_gpu * 1e12 / time.tokens_per_s_per_gpu


@pytest.mark.parametrize(("framework", "implementation", "convention"), [
    ("megatron", "megatron", "megatron-bridge up to 0.4"), ("automodel", "automodel", "automodel"),
    ("automodel", "hf", "automodel"), ("fsdp2", "torchtitan", "torchtitan"), ("fsdp2", "hf", "rankscope"),
    ("ddp", "hf", "rankscope")])
def test_flops_are_counted_as_the_framework_prints_them(framework: str, implementation: str, convention: str) -> None:
    model = "llama-tiny" if framework != "automodel" else "mixtral-8x7b" if implementation == "hf" else "llama-tiny"
    given = small.scenario(framework, {"dp_shard": 2} if framework != "ddp" else {"dp_replicate": 2}, model=model)
    time = time_of(Scenario.model_validate(given.normalised() | {"implementation": implementation}))
    assert time.convention == convention
    if convention != "rankscope":
        graph = small.prepared(framework, {"dp_shard": 2}, model=model)[0].graph
        assert flops_of_a_token(time) == pytest.approx(CONVENTIONS[convention].per_token(Asked(graph, 64, 64)))


def test_lora_under_automodel_is_counted_without_gradients_of_frozen_weights() -> None:
    full, lora = (time_of(small.scenario("automodel", {"dp_shard": 2}, method=method)) for method in ("full", "lora"))
    assert 2 / 3 < flops_of_a_token(lora) / flops_of_a_token(full) < 0.7


def test_mfu_is_of_the_peak_of_the_format() -> None:
    bf16 = time_of(small.scenario("megatron", {"dp_shard": 2}))
    assert (bf16.peak_dtype, bf16.peak_tflops) == ("bf16", 989.4)
    assert bf16.mfu == pytest.approx(bf16.model_tflops_per_gpu / 989.4)
    fp8 = time_of(small.scenario("megatron", {"dp_shard": 2}, precision={"compute": "fp8"},
                                 options={"fp8_recipe": "tensorwise"}))
    assert (fp8.peak_dtype, fp8.peak_tflops) == ("fp8", 1978.9)
    assert fp8.mfu == pytest.approx(fp8.model_tflops_per_gpu / 1978.9)


def test_recomputation_is_executed_and_not_counted() -> None:
    none, full = (time_of(small.scenario("fsdp2", {}, model="llama-3-8b", seq_len=4096, recompute=recompute))
                  for recompute in ("none", "full"))
    executed = [time.executed_tflops_per_gpu * time.step_s for time in (none, full) if time.executed_tflops_per_gpu]
    counted = [time.model_tflops_per_gpu * time.step_s for time in (none, full)]
    assert counted[0] == pytest.approx(counted[1])
    assert 1.2 < executed[1] / executed[0] < 4 / 3
    assert executed[0] >= counted[0] * (1 - 1e-9)


@pytest.mark.parametrize(("framework", "model", "given"), [
    ("fsdp2", "qwen3-30b-a3b", {"options": {"experts": "ep_dispatch_experts"}}),
    ("automodel", "qwen3-next-80b-a3b", {"implementation": "automodel"}),
    ("zero1", "qwen3-30b-a3b", {"implementation": "autoep"}), ("megatron", "qwen3-30b-a3b", {})])
def test_uneven_loads_of_experts_never_raise_utilisation(framework: str, model: str, given: dict[str, Any]) -> None:
    """The fullest rank does more, the others less: a token has the FLOPs of equal loads, and the step is longer."""
    even, uneven = (time_of(small.scenario(framework, {"dp_shard": 8, "ep": 8}, model=model, seq_len=4096,
                                           routing={"imbalance": imbalance}, **given)) for imbalance in (1, 4))
    assert flops_of_a_token(uneven) == pytest.approx(flops_of_a_token(even))
    assert uneven.step_s > even.step_s
    assert uneven.mfu < even.mfu


def test_the_limit_is_the_longer_of_arithmetic_and_traffic() -> None:
    time = time_of(small.scenario("fsdp2", {}, model="llama-3-8b", seq_len=32768))
    roofline = time.roofline
    assert roofline is not None
    flops = sum(kernel.flops for kernel in time.kernels if kernel.kernel in ("gemm", "attention"))
    assert roofline.limits["compute"] == pytest.approx(flops / 989.4e12)
    assert roofline.limits["memory"] == pytest.approx(sum(kernel.bytes_moved for kernel in time.kernels) / 3.35e12,
                                                      rel=0.01)
    assert roofline.limit_s == max(roofline.limits.values()) < time.step_s
    assert (roofline.limit, roofline.limits["nvlink"]) == ("compute", 0)


def test_bytes_of_links_are_a_limit_too() -> None:
    """Two nodes: what leaves a rank over NVLink, and over its share of the NICs."""
    report = simulate(small.scenario("fsdp2", {"dp_shard": 16}, model="llama-3-8b", seq_len=64))
    time, traffic = report.time, report.ranks[0].traffic
    assert time is not None
    assert time.roofline is not None
    assert time.roofline.limits["nvlink"] == pytest.approx(sum(row.nvlink_bytes for row in traffic) / 450e9)
    assert time.roofline.limits["network"] == pytest.approx(sum(row.network_bytes for row in traffic) / 50e9)
    assert 0 < time.roofline.limits["network"] < time.step_s


@pytest.mark.parametrize(("topology", "bandwidth", "sent"), [("dgx-h200", 450e9, 1), ("dgx-a100", 300e9, 7 / 4)])
def test_a_switch_that_sums_is_sent_a_buffer_once(topology: str, bandwidth: float, sent: float) -> None:
    """DDP of 8 ranks: a ring sends 7/4 of a buffer. H200's measured all-reduce is faster than a ring could be."""
    report = simulate(small.scenario("ddp", {"dp_replicate": 8}, model="llama-3-8b", seq_len=64, topology=topology))
    assert report.time is not None
    assert report.time.roofline is not None
    payload = sum(row.payload_bytes for row in report.ranks[0].traffic)
    assert {row.collective for row in report.ranks[0].traffic} == {"all_reduce"}
    assert report.time.roofline.limits["nvlink"] == pytest.approx(sent * payload / bandwidth)


def test_waiting_is_told_by_the_link_that_is_waited_for() -> None:
    """Tensor parallelism inside a node, data parallelism over two, inputs of layers on the host."""
    def waited(mesh: dict[str, int], **given: Any) -> dict[str, float]:
        time = time_of(small.scenario("fsdp2", mesh, model="llama-3-8b", seq_len=256, **given))
        assert time.roofline is not None
        assert sum(time.roofline.seconds.values()) == pytest.approx(time.step_s)
        links = {name: time.roofline.seconds[name] for name in ("nvlink", "network", "host_link")}
        assert sum(links.values()) == pytest.approx(time.exposed_communication_s)
        return {name: seconds for name, seconds in links.items() if seconds}

    assert set(waited({"dp_shard": 8})) == {"nvlink"}
    assert set(waited({"dp_shard": 16})) == {"network"}
    assert set(waited({"dp_shard": 8}, recompute="full", offload={"activations": "host"})) == {"nvlink", "host_link"}
    assert waited({}) == {}


@pytest.mark.parametrize(("given", "bound"), [
    ({"model": "llama-3-8b", "seq_len": 32768}, "compute"), ({"model": "llama-tiny"}, "host"),
    ({"model": "llama-3-8b", "seq_len": 64}, "memory")])
def test_what_bounds_a_step(given: dict[str, Any], bound: str) -> None:
    """Long rows are arithmetic; of few tokens the optimizer's traffic is left, of small matrices the host."""
    roofline = time_of(small.scenario("fsdp2", {}, **given)).roofline
    assert roofline is not None
    assert roofline.bound == bound


# ---- money ----------------------------------------------------------------------------------------------------------
def test_without_a_price_nothing_has_a_cost() -> None:
    """Never 0: that would be a price."""
    unpriced: Any = SimpleNamespace(name="cluster", price_per_gpu_hour=None)
    found = cost(unpriced, 2.0, 1000, 8, 1001)
    assert (found.per_million_tokens, found.per_run, found.price_per_gpu_hour) == (None, None, None)
    assert found.per_step is None
    assert found.note == "no price: cluster has no price_per_gpu_hour"
    assert (found.run_s, found.gpu_hours) == (2002.0, 2002 * 8 / 3600)


def test_a_price_by_the_hour() -> None:
    """8 GPUs at 3.60 an hour are 0.8 cents a second; 1000 tokens take two."""
    price = SimpleNamespace(si=3.6, date="2026-05", source="somebody")
    priced: Any = SimpleNamespace(name="cluster", price_per_gpu_hour=price)
    found = cost(priced, 2.0, 1000, 8, 500)
    assert found.per_step == pytest.approx(0.016)
    assert found.per_million_tokens == pytest.approx(16)
    assert found.per_run == pytest.approx(8)
    assert (found.price_date, found.price_source, found.note) == ("2026-05", "somebody", "")
    assert cost(priced, 2.0, 1000, 8, None).per_run is None


@pytest.mark.parametrize(("given", "steps"), [
    ({"num_samples": 9}, 3), ({"num_samples": 8}, 2), ({"num_epochs": 3, "dataset_size": 5}, 4),
    ({"num_epochs": 0.1, "dataset_size": 120}, 3), ({"num_epochs": 0.7, "dataset_size": 40}, 7),
    ({"num_samples": 17, "lengths": "packed", "packed_length": 32, "model": "llama-tiny"}, 3)])
def test_the_length_of_a_run_in_samples_and_epochs(given: dict[str, Any], steps: int) -> None:
    """4 sequences of 64 tokens a step; in packs of two samples 8. 0.7 x 40 is 28, not a little more."""
    time = time_of(small.scenario("fsdp2", {"dp_shard": 2}, micro_batch_size=2, **given))
    assert time.cost is not None
    assert time.cost.run_s == pytest.approx(steps * time.step_s)


def test_a_run_is_of_whole_steps() -> None:
    time = time_of(small.scenario("fsdp2", {"dp_shard": 2}, num_tokens=129))  # 128 tokens a step
    price = H100.price_per_gpu_hour
    assert time.cost is not None
    assert price is not None
    assert time.cost.run_s == pytest.approx(2 * time.step_s)
    assert time.cost.per_run == pytest.approx(2 * time.step_s * 2 / 3600 * price.si)
    assert (time.cost.price_date, time.cost.note) == (price.date, "")


def test_ktos_pass_over_other_completions_counts_for_nothing() -> None:
    """It has no backward; DPO's policy has as many FLOPs over the same tokens."""
    found = []
    for loss in ("preference_fused", "kto_fused"):
        report = simulate(small.scenario("ddp", {"dp_replicate": 2}, model="llama-tiny", micro_batch_size=2, loss=loss))
        assert report.time is not None
        assert report.time.model_tflops_per_gpu is not None
        found.append(report.time.model_tflops_per_gpu * report.time.step_s)
    assert found[1] == pytest.approx(found[0], rel=0.01)
