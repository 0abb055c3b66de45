"""ZeRO-3: what is gathered when, what stays, what is sent."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.deepspeed.at_rest import exact_in_pieces
from simcore.frameworks.deepspeed.strategy import PERSISTENT
from simcore.placement.plan import Placed, Plan
from simcore.program.program import Program
from simcore.simulate import simulate

LAYERS, HIDDEN, VOCAB = 6, 256, 4000
MODEL = {"config": "llama-3.2-3b", "overrides": {
    "hidden_size": HIDDEN, "intermediate_size": 512, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": VOCAB, "tie_word_embeddings": False}}
RANKS = 4
ALONE = {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
DOWN = 512 * HIDDEN
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * 512 + 2 * HIDDEN


def plan(**options: Any) -> Plan:
    return small.plan_of("zero3", {"dp_shard": RANKS}, model=MODEL, options=ALONE | options)


def made(options: dict[str, Any] | None = None, **given: Any) -> Program:
    return small.program_of("zero3", {"dp_shard": RANKS}, model=MODEL, options=ALONE | (options or {}), **given)


def most(program: Program, *names: str) -> int:
    """Bytes of these owners that are alive together at the most."""
    slots = {number for (name, _), number in program.tables.slots.items() if name in names}
    held = highest = 0
    for op, _, slot, size, *_ in program.columns.tolist():
        if op in (0, 1) and slot in slots:
            held += size
            highest = max(highest, held)
    return highest


def gathered(program: Program) -> dict[str, int]:
    """Bytes by phase."""
    found = small.calls(program, "all_gather")
    return {phase: sum(size for _, p, size in found if p == phase) for phase in ("forward", "backward")}


def test_without_reuse_one_layer_is_whole_at_a_time() -> None:
    program = made()
    assert most(program, "fetched", "prefetched") == 2 * max(LAYER, VOCAB * HIDDEN)
    whole = 2 * plan().graph.count()
    assert gathered(program) == {"forward": whole, "backward": whole}


def test_without_reuse_a_replay_gathers_for_itself() -> None:
    program = made(recompute="full")
    whole = 2 * plan().graph.count()
    again = 2 * LAYERS * (LAYER - DOWN)  # the linear that asks for a replay has its weight until the replay is over
    assert gathered(program) == {"forward": whole, "backward": whole + again}
    assert most(program, "fetched", "prefetched") == 2 * max(LAYER, VOCAB * HIDDEN)


def test_what_is_used_again_soon_is_kept() -> None:
    """The head is used again at once; further back lie the norm and the last linear, behind twice the head."""
    whole = 2 * plan().graph.count()
    assert whole - gathered(made({"stage3_max_reuse_distance": 1}))["backward"] == 2 * VOCAB * HIDDEN
    far = made({"stage3_max_reuse_distance": 2 * VOCAB * HIDDEN + 2 * HIDDEN + 1})
    assert whole - gathered(far)["backward"] >= 2 * (VOCAB * HIDDEN + HIDDEN + 512 * HIDDEN)


def test_a_replay_and_its_backward_share_what_is_gathered() -> None:
    program = made({"stage3_max_reuse_distance": 2 * LAYER}, recompute="full")
    assert gathered(program)["backward"] <= 2 * plan().graph.count()


def test_every_call_gathers_ahead_until_enough_is_there() -> None:
    """Containers and activations have nothing to fetch, and gather ahead all the same."""
    options = {"stage3_prefetch_bucket_size": HIDDEN**2}
    program = made(options)
    assert sum(gathered(program).values()) <= 2 * 2 * plan().graph.count()
    assert most(program, "fetched", "prefetched") > 2 * 3 * LAYER
    live = VOCAB * HIDDEN + LAYER
    bounded = made(options | {"stage3_max_live_parameters": live})
    assert most(bounded, "fetched", "prefetched") <= 2 * (live + LAYER + VOCAB * HIDDEN)


def test_no_more_is_brought_ahead_than_may_be_there() -> None:
    none = made({"stage3_prefetch_bucket_size": 10**9, "stage3_max_live_parameters": 0})
    assert small.calls(none, "all_gather") == small.calls(made(), "all_gather")


def test_small_parameters_stay_gathered_and_are_gathered_again_after_the_step() -> None:
    program = made({"stage3_param_persistence_threshold": HIDDEN})
    norms = 2 * (2 * LAYERS + 1) * HIDDEN
    assert [(phase, size) for _, phase, size in small.postings(program, "persistent")] == [
        ("build", norms), ("optimizer", -norms), ("optimizer", norms)]
    assert [size for _, phase, size in small.calls(program, "all_gather") if phase == "optimizer"] == [norms]


@pytest.mark.parametrize("microbatches", [1, 3])
def test_gradients_are_scattered_every_microbatch_in_buckets(microbatches: int) -> None:
    program = made({"reduce_bucket_size": 300_000}, microbatches=microbatches)
    sizes = [size for *_, size in small.calls(program, "reduce_scatter")]
    assert sum(sizes) == microbatches * 2 * plan().graph.count()
    assert {size for size in sizes if size > 2 * 300_000} == {2 * VOCAB * HIDDEN}


def test_a_tensor_alone_needs_no_copy_unless_it_leaves_a_remainder() -> None:
    """`reduce_scatter_coalesced`: `len(tensors) == 1 and numel % world_sz == 0`."""
    assert small.postings(made({"reduce_bucket_size": 1}), "flat_bucket") == []
    odd = small.program_of("zero3", {"dp_shard": 3}, model=MODEL, options=ALONE | {"reduce_bucket_size": 1})
    assert 2 * (VOCAB * HIDDEN + 2) in [size for *_, size in small.postings(odd, "flat_bucket")]


def test_buckets_and_partitions_of_gradients_rest_for_good() -> None:
    program = made({"reduce_bucket_size": 1000})
    assert small.postings(program, "ipg_bucket") == [(0, "build", 2000)]
    assert small.postings(program, "grad_partitions") == [(0, "build", 2 * plan().graph.count() // RANKS)]


def test_the_step_goes_group_by_group() -> None:
    whole = plan().graph.count() // RANKS
    one = [size for *_, size in small.postings(made(), "fp32_grad") if size > 0]
    several = [size for *_, size in small.postings(made({"sub_group_size": whole // 3}), "fp32_grad") if size > 0]
    assert one == [4 * whole]
    assert sum(several) == 4 * whole
    assert len(several) > 1
    assert all(size >= 4 * (whole // 3) for size in several[:-1])


def test_sub_groups_of_no_size_are_single_parameters() -> None:
    """stage3.py:1160-1181: a parameter closes its sub-group when the size is reached, and 0 always is."""
    single = [size for *_, size in small.postings(made({"sub_group_size": 0}), "fp32_grad") if size > 0]
    shards = [placed for layer in plan().layers for placed in plan().of_layer(layer) if placed.spec.is_owned]
    assert sorted(single) == sorted(4 * placed.padded for placed in shards)


def test_no_gather_begins_before_the_microbatch_before_is_over() -> None:
    """The host waits for the stream of reductions (deepspeed 0.19.6 stage3.py:1368): a microbatch is like the next."""
    asked = small.scenario("zero3", {"dp_shard": RANKS}, model=MODEL, microbatches=3, seq_len=1)
    found = simulate(asked, detail=True, whole=True).detail
    assert found is not None
    spans = found.classes[0].spans
    ends = [max(s.end_s for s in spans if s.kind == "reduce_scatter" and s.microbatch == n) for n in range(3)]
    starts = [min(s.start_s for s in spans if s.kind == "all_gather" and s.microbatch == n) for n in range(3)]
    assert starts[0] == 0
    assert starts[1] >= ends[0]
    assert starts[2] >= ends[1]


# ---- experts --------------------------------------------------------------------------------------------------------
QWEN = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2}}
UP = 128 * 256
"""Elements of either linear of one expert of the small mixture, of which a layer has eight."""


def mixture(**given: Any) -> Plan:
    return small.plan_of("zero3", {"dp_shard": 3}, implementation="hub", **given)


def of_experts(made: Plan) -> list[Placed]:
    return [placed for layer in made.layers for placed in made.of_layer(layer) if placed.spec.copies > 1]


def test_every_experts_linear_is_cut_and_padded_alone() -> None:
    """10,923 of 32,768 elements a rank, and the last one two less, eight times."""
    assert {placed.padded for placed in of_experts(mixture())} == {8 * 10923}
    rest = [exact_in_pieces(mixture(rank=rank))["routed_experts"].num_params for rank in range(3)]
    assert rest[0] == rest[1] == 2 * 2 * 8 * 10923
    assert sum(rest) == 2 * 2 * 8 * UP


def test_experts_stay_gathered_if_each_linear_is_small() -> None:
    """The threshold is that of one parameter, and not of all experts' together."""
    kept = {name: {placed.policy.name for placed in of_experts(mixture(options={
        "stage3_param_persistence_threshold": UP - 1 + name}))} for name in (0, 1)}
    assert kept == {0: {"partitioned"}, 1: {PERSISTENT}}


@pytest.mark.parametrize("options", [{}, {"zero_hpz_partition_size": 3}])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_whatever_is_gathered_is_freed(method: str, options: dict[str, Any]) -> None:
    for implementation, model in (("hub", small.TINY), ("hf4", QWEN)):
        program = small.program_of("zero3", {"dp_shard": 3}, implementation=implementation, model=model, method=method,
                                   recompute="full", options=ALONE | options, microbatches=2)
        for name in ("fetched", "prefetched", "secondary_part"):
            assert sum(size for _, phase, size in small.postings(program, name) if phase != "build") == 0


def test_second_shards_of_frozen_parameters_outlive_the_step() -> None:
    """They are there before the step; of adapters, which it updates, they are gone behind it (hpZ)."""
    program = made({"zero_hpz_partition_size": 2}, method="lora")
    held = small.postings(program, "secondary_part")
    frozen = [size for _, phase, size in held if phase == "build"]
    trained = [size for _, phase, size in held if phase != "build"]
    assert sum(frozen) == 2 * (2 * VOCAB * HIDDEN + LAYERS * LAYER + HIDDEN) // 2
    assert min(frozen) > 0
    assert sum(trained) == 0 < max(trained)
    calls = [(axis, size) for axis, phase, size in small.calls(program, "all_gather") if phase == "forward"]
    assert {axis for axis, size in calls if size >= 2 * HIDDEN**2} == {"dp_shard/2"}
    assert {axis for axis, size in calls} == {"dp_shard", "dp_shard/2"}
