"""FSDP1: closed forms of what rests and of the peak, what is refused, how options are read."""

from __future__ import annotations

import re
from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet, RankscopeError
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy
from simcore.frameworks.registry import at_rest_of
from simcore.placement.plan import AtRestBytes, Plan
from simcore.simulate import place, simulate

LLAMA = "llama-tiny"


def _exact(plan: Plan) -> dict[str, AtRestBytes]:
    return at_rest_of(plan.framework).exact(plan)


def rests(mesh: dict[str, int], rank: int = 0, **given: Any) -> tuple[int, int, int]:
    """(parameters, gradients, states) on a rank."""
    rest = _exact(small.plan_of("fsdp1", mesh, rank=rank, model=LLAMA, **given)).values()
    return (sum(r.params_bytes for r in rest), sum(r.grads_bytes for r in rest), sum(r.optimizer_bytes for r in rest))


def count(**given: Any) -> int:
    return small.plan_of("fsdp1", {}, model=LLAMA, **given).graph.count()


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_together_hold_every_element_once(ranks: int) -> None:
    """4 bytes of a parameter, 4 of its gradient, 8 of its moments."""
    found = [rests({"dp_shard": ranks}, rank) for rank in range(ranks)]
    assert [sum(part) for part in zip(*found, strict=True)] == [4 * count(), 4 * count(), 8 * count()]


def test_copies_hold_what_their_like_holds() -> None:
    assert rests({"dp_shard": 2, "dp_replicate": 3}, 2) == rests({"dp_shard": 2})
    assert rests({"dp_replicate": 3}, 2) == rests({})


def test_where_some_of_a_unit_is_trained_all_of_it_has_a_gradient() -> None:
    given: dict[str, Any] = {"method": "lora", "options": {"use_orig_params": True}}
    params, grads, states = rests({"dp_shard": 2}, **given)
    plan = small.plan_of("fsdp1", {"dp_shard": 2}, model=LLAMA, **given)
    layers = {layer for layer in plan.layers if plan.of_layer(layer).is_trained}
    inside = sum(p.used for layer in layers for p in plan.of_layer(layer) if p.spec.is_owned)
    trained = sum(p.used for layer in layers for p in plan.of_layer(layer) if p.trainable)
    assert params // 4 > grads // 4 > states // 8
    assert abs(grads - 4 * inside // 2) <= 4 * len(layers)
    assert states + rests({"dp_shard": 2}, 1, **given)[2] == 8 * trained


@pytest.mark.parametrize(("prefetch", "units"), [("BACKWARD_PRE", 2), ("BACKWARD_POST", 1), ("NO_PREFETCH", 1)])
def test_so_many_layers_are_whole_in_backward(prefetch: str, units: int) -> None:
    """Beside the root's."""
    program = small.program_of("fsdp1", {"dp_shard": 4}, model=LLAMA, options={"backward_prefetch": prefetch})
    whole = [(phase, size) for _, phase, size in small.postings(program, "flat_param")]
    held = most = 0
    for phase, size in whole:
        held += size
        most = max(most, held * (phase == "backward"))
    root, layer, *_ = flat_units(small.plan_of("fsdp1", {"dp_shard": 4}, model=LLAMA))
    assert most == 2 * (root.numel + units * layer.numel)


def test_no_sync_keeps_whole_gradients() -> None:
    kept = small.postings(small.program_of("fsdp1", {"dp_shard": 4}, model=LLAMA, microbatches=2, options={
        "sync_gradients": "last"}), "flat_grad")
    alive = 0
    for at, (*_, size) in enumerate(kept):
        alive += size
        if at + 1 == sum(size > 0 for *_, size in kept) // 2:  # the first microbatch is over
            assert alive == 2 * count()
    assert alive == 0


def test_reducing_in_fp32_needs_a_copy() -> None:
    program = small.program_of("fsdp1", {"dp_shard": 4}, model=LLAMA, precision={"grad_reduce": "fp32"})
    copies = [size for *_, size in small.postings(program, "flat_grad_to_reduce") if size > 0]
    whole = [size for *_, size in small.postings(program, "flat_grad") if size > 0]
    assert copies == [2 * size for size in whole]


def test_on_the_host_are_parts_gradients_and_states() -> None:
    given: dict[str, Any] = {"offload": {"params": "host", "gradients": "host", "optimizer": "host"}}
    plan = small.plan_of("fsdp1", {"dp_shard": 4}, model=LLAMA, **given)
    assert plan.elsewhere() == {"host_pinned": 8 * count() // 4, "host": 8 * count() // 4}
    assert rests({"dp_shard": 4}, **given) == (0, 0, 0)
    report = simulate(small.scenario("fsdp1", {"dp_shard": 4}, model=LLAMA, **given), timed=False)
    assert report.ranks[0].peak is not None
    assert report.ranks[0].peak.host_bytes == 16 * count() // 4


@pytest.mark.parametrize(("mesh", "stored"), [({"dp_shard": 8}, "fp32"), ({"dp_shard": 3}, "bf16"), ({}, "fp32")])
def test_an_optimizer_without_states_still_steps(mesh: dict[str, int], stored: str) -> None:
    given: dict[str, Any] = {"model": LLAMA, "precision": {"params": stored}}
    plain, with_states = (simulate(small.scenario("fsdp1", mesh, optimizer=optimizer, **given)) for optimizer in (
        {"name": "sgd"}, {"name": "sgd", "momentum": 0.9}))
    assert plain.status == "ok", plain.problems
    assert plain.ranks[0].padding_bytes == with_states.ranks[0].padding_bytes
    states = [sum(part.optimizer_bytes for part in report.ranks[0].at_rest.values()) for report in (plain, with_states)]
    assert states[0] == 0 < states[1]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("moments", ["fp32", "int8"])
def test_states_of_8_bits_and_paged_ones_are_cut_as_flat_parameters_are(ranks: int, paged: bool, moments: str) -> None:
    """Two of each element, in blocks of 256 with a scale in fp32; bitsandbytes pages flat parameters, but no scales."""
    asked = small.scenario("fsdp1", {"dp_shard": ranks}, model="llama-3.2-1b", optimizer={
        "paged": paged, "moments": moments, "implementation": "bitsandbytes"})
    run, placed = (ask(asked).ranks[0] for ask in (simulate, place))
    mine = 2 * small.plan_of("fsdp1", {}, model="llama-3.2-1b").graph.count() // ranks
    values, scales = (mine, 4 * mine // 256) if moments == "int8" else (4 * mine, 0)
    for rank in (run, placed):
        assert sum(part.optimizer_bytes for part in rank.at_rest.values()) == values * (not paged) + scales
    assert run.peak is not None
    assert run.peak.by_category.get("opt_state", 0) == values * (not paged) + scales
    assert run.peak.outside.get("paged_states", 0) == values * paged


def test_defaults_are_torchs_own() -> None:
    _, table = small.prepared("fsdp1", {"dp_shard": 4}, model=LLAMA)
    assert table.strategy == Fsdp1Strategy("FULL_SHARD", "dp_shard", "", "bf16", "pre", False, False, "every", False)
    _, table = small.prepared("fsdp1", {"dp_shard": 4, "dp_replicate": 2}, model=LLAMA)
    assert table.strategy == Fsdp1Strategy("FULL_SHARD", "dp_shard", "dp_replicate", "bf16")
    _, table = small.prepared("fsdp1", model=LLAMA)
    assert table.strategy == Fsdp1Strategy("NO_SHARD", "dp_shard", "", "bf16")


HOST = {"params": "host", "gradients": "host", "optimizer": "host"}


@pytest.mark.parametrize(("mesh", "given", "kind", "told"), [
    ({"dp_shard": 2, "tp": 2}, {}, NotYet, "fsdp1 with tensor parallelism"),
    ({"dp_shard": 2}, {"method": "lora"}, IllegalLayout, "Must flatten tensors with uniform `requires_grad`"),
    ({"dp_shard": 2}, {"options": {"sharding_strategy": "NO_SHARD"}}, IllegalLayout, "NO_SHARD cuts nothing"),
    ({"dp_replicate": 2}, {"options": {"sharding_strategy": "HYBRID_SHARD"}}, IllegalLayout, "which is 1"),
    ({"dp_shard": 2, "dp_replicate": 2}, {"options": {"sharding_strategy": "FULL_SHARD"}}, IllegalLayout, "one group"),
    ({"dp_shard": 2}, {"offload": {"params": "host"}}, IllegalLayout, "all three and whole"),
    ({"dp_shard": 2}, {"offload": HOST, "microbatches": 2}, IllegalLayout, "outside no_sync() does not work"),
    ({}, {"offload": HOST}, NotYet, "parameters on the host that are not sharded"),
])
def test_what_is_refused(mesh: dict[str, int], given: dict[str, Any], kind: type[RankscopeError], told: str) -> None:
    with pytest.raises(kind, match=re.escape(told)):
        small.prepared("fsdp1", mesh, model=LLAMA, **given)
