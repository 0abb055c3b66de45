"""Formats of Megatron's parameters, masters, moments and gradients, and an optimizer on the host."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import FORMATS, OWNING, PRECISE, defaults, master, refused_with
from simcore.simulate import place, simulate


@pytest.mark.parametrize("training", FORMATS)
def test_formats_are_the_precision_aware_optimizers(training: dict[str, Any]) -> None:
    refused_with("illegal", "can only be fp32 when not using precision-aware optimizer", **training)


@pytest.mark.parametrize(("options", "optimizer", "told"), [
    ({"use_distributed_optimizer": False}, {}, "only supported with distributed optimizer"),
    ({}, {"name": "sgd"}, "only supported with adam"),
    ({}, {"master": "bf16"}, "only supports fp32/fp16 master weights"),
    ({}, {"master": "none"}, "only supports fp32/fp16 master weights")])
def test_what_the_precision_aware_optimizer_refuses(options: dict[str, Any], optimizer: dict[str, Any],
                                                    told: str) -> None:
    refused_with("illegal", told, options=PRECISE | options, optimizer=optimizer)


def test_what_is_not_modelled_of_it() -> None:
    refused_with("error", "fp16 masters", optimizer={"master": "fp16"}, offload={"optimizer": "host"})
    refused_with("error", "it has no effect", options={"store_param_remainders": False})


def test_a_master_is_kept_in_halves_only_beside_bf16_parameters() -> None:
    whole = master()
    assert master(options=OWNING) == master(options=OWNING, optimizer={"master": "fp32"}) == whole // 2
    assert master(options=OWNING | {"store_param_remainders": False}) == whole
    assert master(options=OWNING, precision={"compute": "fp16"}) == whole


def test_a_master_in_fp16_is_the_optimizers_own() -> None:
    """Whatever fp8_recipe says; store_param_remainders is that of fp32 masters alone, and no gradient is copied."""
    assert 2 * master(options=PRECISE, optimizer={"master": "fp16"}) == master()
    program = small.program_of("megatron", options=PRECISE, precision={"main_grads": "bf16"},
                               optimizer={"master": "fp16"})
    assert small.postings(program, "fp32_grad_shard") == []


@pytest.mark.parametrize(("optimizer", "copies"), [
    ({"master": "fp16"}, 1), ({"master": "fp16", "moments": "bf16"}, 1), ({"moments": "fp16"}, 2),
    ({"master": "fp16", "moments": "fp16"}, 3), ({"moments": "bf16"}, 0)])
def test_states_in_fp16_are_copied_to_fp32_for_the_step(optimizer: dict[str, str], copies: int) -> None:
    """Those of all matrices together; of dense ones and of experts the larger part: here dense ones."""
    mesh = {"dp_shard": 4, "ep": 2}
    program = small.program_of("megatron", mesh, options=PRECISE, optimizer=optimizer)
    plan = small.plan_of("megatron", mesh)
    matrices = [sum(p.local for layer in plan.layers for p in plan.of_layer(layer) if len(p.spec.shape) > 1
                    and (p.policy.name == "expert") == expert) // ranks for expert, ranks in ((False, 4), (True, 2))]
    posted = [size for _, _, size in small.postings(program, "unscaled_states") if size > 0]
    assert posted == [4 * copies * max(matrices)] * bool(copies)


def test_bridge_leaves_fp32_masters_to_core() -> None:
    """Its mixed precision tells the optimizer "tensorwise" in bf16 runs too: nothing is kept in halves."""
    assert master(options=PRECISE) == master()
    assert defaults(options=PRECISE)["framework_options.fp8_recipe"] == "tensorwise"
    copied = {}
    for held, options in (("core's", PRECISE), ("its own", OWNING)):
        program = small.program_of("megatron", options=options, precision={"main_grads": "bf16"})
        copied[held] = sum(amount for _, _, amount in small.postings(program, "fp32_grad_shard"))
    numel = sum(rest.num_params for rest in small.plan_of("megatron").at_rest().values())
    assert copied == {"core's": 4 * numel, "its own": 0}
    refused_with("error", "it has no effect", options=PRECISE | {"store_param_remainders": False})


def _away(fraction: float, **given: Any) -> tuple[int, dict[str, int]]:
    """Bytes of the optimizer on the device and elsewhere."""
    offload = {"optimizer": {"space": "host", "fraction": fraction}} if fraction else {}
    plan = small.plan_of("megatron", {"dp_shard": 2}, offload=offload, **given)
    return sum(part.optimizer_bytes for part in plan.at_rest().values()), plan.elsewhere()


def test_an_optimizer_on_the_host_takes_masters_moments_and_copies_of_gradients_along() -> None:
    """fp32 masters and moments, 12 bytes, and 4 of a pinned gradient; nothing of it is left on the device."""
    whole, nothing = _away(0)
    assert nothing == {}
    here, away = _away(1)
    assert here == 0
    assert (away["host"], away["host_pinned"]) == (whole, whole // 3)


def test_a_fraction_of_the_optimizer_on_the_host() -> None:
    whole, _ = _away(0)
    here, away = _away(0.25)
    assert here == pytest.approx(0.75 * whole, rel=1e-3)
    assert away["host"] == pytest.approx(0.25 * whole, rel=1e-3)
    exact = place(small.scenario("megatron", {"dp_shard": 2}, offload={"optimizer": {"space": "host",
                                                                                      "fraction": 0.25}}), rank=0)
    assert sum(part.optimizer_bytes for part in exact.ranks[0].at_rest.values()) == pytest.approx(here, rel=0.05)


def test_the_peak_is_lower_by_what_lies_on_the_host_and_that_is_told() -> None:
    here, there = (simulate(small.scenario("megatron", {"dp_shard": 2}, offload=offload)) for offload in (
        {}, {"optimizer": "host"}))
    peaks = [report.ranks[0].peak for report in (here, there)]
    states = sum(part.optimizer_bytes for part in here.ranks[0].at_rest.values())
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes - peaks[1].allocated_bytes == pytest.approx(states, rel=0.01)
    told = {a.what for a in there.assumptions}
    assert {"outside the device, host", "outside the device, host_pinned", "time of offload"} <= told


@pytest.mark.parametrize(("status", "told", "given"), [
    ("illegal", "in conjunction with", {"offload": {"optimizer": "host"},
                                        "options": {"use_precision_aware_optimizer": False}}),
    ("error", "nvme under megatron", {"offload": {"optimizer": "nvme"}}),
    ("error", "params outside the device under megatron", {"offload": {"params": "host"}}),
    ("error", "on the host, gradients in bf16", {"offload": {"optimizer": {"space": "host", "fraction": 0.5}},
                                         "precision": {"main_grads": "bf16"}})])
def test_what_is_refused_of_offload(status: str, told: str, given: dict[str, Any]) -> None:
    refused_with(status, told, **given)


@pytest.mark.parametrize(("optimizer", "per_element"), [({}, 8), ({"momentum": 0.9}, 8), ({"momentum": 0}, 4)])
def test_sgd_keeps_a_buffer_unless_its_momentum_is_none(optimizer: dict[str, Any], per_element: int) -> None:
    parts = small.plan_of("megatron", options={"use_distributed_optimizer": False},
                          optimizer={"name": "sgd", **optimizer}).at_rest().values()
    assert sum(p.optimizer_bytes for p in parts) == per_element * sum(p.num_params for p in parts)


def test_sgd_orthogonalises_nothing() -> None:
    """Asserts that a buffer of momentum alone does not count Muon's temporaries (core 0.16.1 optimizer/muon.py)."""
    program = small.program_of("megatron", options={"use_distributed_optimizer": False}, optimizer={"name": "sgd"})
    assert all(amount == 0 for *_, amount in small.postings(program, "orthogonalised"))


def test_sgd_needs_the_plain_optimizer() -> None:
    refused_with("illegal", "Only Adam and HybridDeviceOptimizer", optimizer={"name": "sgd"})
    refused_with("error", "momentum of adamw", optimizer={"momentum": 0.9})


@pytest.mark.parametrize("moments", ["bf16", "fp16", "fp32"])
def test_the_precision_aware_optimizer_chooses_its_moments(moments: str) -> None:
    assert "training.optimizer.moments" not in defaults(options=PRECISE, optimizer={"moments": moments})


@pytest.mark.parametrize(("precision", "told"), [
    ({"compute": "fp32"}, "fp32 under megatron"), ({"params": "fp32"}, "fp32 under megatron"),
    ({"main_grads": "fp16"}, "fp16 under megatron"), ({"grad_reduce": "fp16"}, "fp16 under megatron"),
    ({"main_grads": "fp8"}, "main_grads in fp8")])
def test_other_formats_are_not_modelled(precision: dict[str, str], told: str) -> None:
    refused_with("error", told, precision=precision)


def test_gradients_have_one_buffer() -> None:
    refused_with("illegal", "one buffer", precision={"main_grads": "fp32", "grad_reduce": "bf16"})
    assert defaults(precision={"main_grads": "bf16", "grad_reduce": "bf16"})
