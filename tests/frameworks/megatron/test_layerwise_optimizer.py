"""Muon under Megatron: dealt out whole, packed, or cut."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import refused_with
from simcore.frameworks.megatron.layerwise_optimizer import _deal, _pack
from simcore.simulate import place, simulate

MUON = {"name": "muon"}


def _states_of(letters: str, **overrides: Any) -> dict[str, set[str]]:
    """Parameter -> its states beside the master."""
    model = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": letters,
                                                        "num_hidden_layers": len(letters), **overrides}}
    plan = small.plan_of("megatron", model=model, optimizer=MUON)
    assert all(dict(p.states)["master_param"] == 4 * p.local for kind in plan.kinds for p in kind if p.trainable)
    return {p.spec.name: {name for name, _ in p.states} - {"master_param"}
            for kind in plan.kinds for p in kind if p.trainable}


def test_matrices_go_to_muon_and_the_rest_to_adam() -> None:
    states = _states_of("ME*-", position_embedding_type="learned_absolute", max_position_embeddings=64)
    muons = {name for name, kept in states.items() if kept == {"momentum_buffer"}}
    assert muons == {
        "embedding.position_embeddings.weight", "mixer.in_proj.weight", "mixer.out_proj.weight", "mlp.router.weight",
        "mlp.experts.linear_fc1.weight", "mlp.experts.linear_fc2.weight", "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.linear_fc2.weight", "self_attention.linear_proj.weight",
        "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"}
    assert all(kept == {"exp_avg", "exp_avg_sq"} for name, kept in states.items() if name not in muons)
    assert {"embedding.word_embeddings.weight", "output_layer.weight", "mixer.conv1d.weight"} <= set(states) - muons


def test_muon_is_not_cut_over_data_parallel_ranks() -> None:
    placed = small.plan_of("megatron", {"dp_shard": 2}, optimizer=MUON).of_layer(1)
    assert {size for p in placed if p.spec.name == "mixer.in_proj.weight" for _, size in p.states} == {
        4 * placed[4].local}
    assert placed[4].spec.name == "mixer.in_proj.weight"
    whole = {"use_distributed_optimizer": True}
    refused_with("illegal", "muon with dist optimizer is not supported", optimizer=MUON, options=whole)
    refused_with("illegal", "muon with fp16 is not supported", optimizer=MUON, precision={"compute": "fp16"})
    refused_with("illegal", "only supported with adam", optimizer=MUON, options={"use_precision_aware_optimizer": True})


@pytest.mark.parametrize(("letters", "largest"), [
    ("M", 12 * (2 * 256 + 2 * 2 * 32 + 8) * 256),  # z, x, B, C and dt of 256 columns: in_proj
    # q of 256 rows, k and v of 128: with q done, all three and q beside 12 bytes of v; or 12 of q beside all three
    ("*", max(4 * 512 * 256 + 12 * 256 * 256, 4 * 512 * 256 + 4 * (256 + 128) * 256 + 12 * 128 * 256))])
def test_muon_works_on_one_matrix_at_a_time(letters: str, largest: int) -> None:
    model = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": letters, "num_hidden_layers": 1}}
    program = small.program_of("megatron", model=model, optimizer=MUON)
    found = [amount for *_, amount in small.postings(program, "orthogonalised")]
    assert found == [largest, -largest]
    assert not small.postings(small.program_of("megatron", model=model), "orthogonalised")


def test_what_is_assumed_of_muon_is_told() -> None:
    told = []
    for given in ({}, {"optimizer": MUON}, {"optimizer": {"name": "dist_muon"}}):
        report = simulate(small.scenario("megatron", {"dp_shard": 2}, **given))  # type: ignore[arg-type]
        told.append([a.value.partition(",")[0] for a in report.assumptions if a.what == "training.optimizer.name"])
    assert [len(values) for values in told] == [0, 1, 2]
    assert told[1] == ["muon_tp_mode blockwise"]


def test_parameters_are_dealt_out_to_and_fro() -> None:
    """Upstream's own example: ten by size over four ranks."""
    sizes = [(size, size % 2 == 0, False, 0) for size in range(10)]
    held = [(0, 7, 8), (1, 6, 9), (2, 5), (3, 4)]
    even, odd = ([sum(n for n in mine if n % 2 == rest) for mine in held] for rest in (0, 1))
    assert _deal(sizes, 4) == tuple((even[rank], odd[rank]) for rank in range(4))


def test_matrices_are_packed_by_their_work_and_the_rest_is_cut_even() -> None:
    """The dearest first, to the rank with the least work, within 1.3 times the mean of elements."""
    matrices = [(6, True, False, 90), (6, True, False, 80), (2, True, False, 30), (2, True, False, 20),
                (4, True, False, 10)]
    # At most 13 elements a rank: 90 | 80, then 30 to the second, 20 to the first; of 110 each the first takes the last.
    assert _pack([*matrices, (7, False, False, 7)], 2) == ((12, 4), (8, 4))
    # One matrix is more than any rank may hold: it goes where least lies.
    assert _pack([(9, True, False, 9), (1, True, False, 1)], 2) == ((9, 0), (1, 0))


def test_main_packs_what_muon_updates_and_cuts_what_adam_does() -> None:
    given: dict[str, Any] = {"model": "llama-tiny", "optimizer": {"name": "dist_muon"}, "version": "main 2026-08-22"}
    _, table = small.prepared("megatron", {"dp_shard": 4}, **given)
    _, plain = small.prepared("megatron", {"dp_shard": 4}, options={"use_layer_wise_param_layout": False}, **given)
    assert table.default("framework_options.use_layer_wise_param_layout") == "true"
    shares, dealt = (made.dealt[0].shares[0] for made in (table, plain))
    assert len({adam for _, adam in shares}) == 1
    assert len({adam for _, adam in dealt}) > 1
    assert sum(muon for muon, _ in shares) == sum(muon for muon, _ in dealt)
    program = small.program_of("megatron", {"dp_shard": 4}, **given)
    assert not any(amount for *_, amount in small.postings(program, "updated_parameters"))
    assert any(what == "framework_options.use_layer_wise_param_layout" and kind == "assumed"
               for what, _, kind, _ in table.assumptions)


@pytest.mark.parametrize(("version", "optimizer", "told"), [
    ("auto", "dist_muon", "core 0.16.1 has no such layout"), ("main 2026-08-22", "adam", r"the layer-wise optimizer")])
def test_where_there_is_no_layer_wise_layout(version: str, optimizer: str, told: str) -> None:
    refused_with("illegal", told, {"dp_shard": 4}, model="llama-tiny", optimizer={"name": optimizer}, version=version,
             options={"use_layer_wise_param_layout": True})


def _dealt_states(rank: int, mesh: dict[str, int]) -> tuple[int, int]:
    """Masters, and the other states, of one rank."""
    program = small.program_of("megatron", mesh, rank=rank, model="llama-tiny", optimizer={"name": "dist_muon"})
    first, second = (small.postings(program, f"layer_wise.{name}") for name in ("master_param", "states"))
    return first[0][2], second[0][2]


def test_the_layer_wise_optimizer_keeps_whole_parameters_on_one_rank_each() -> None:
    whole = small.plan_of("megatron", model="llama-tiny", optimizer=MUON)
    per_rank = [_dealt_states(rank, {"dp_shard": 4}) for rank in range(4)]
    states = [dict(p.states) for kind, count in whole.kind_counts for p in whole.kinds[kind] for _ in range(count)]
    assert sum(masters for masters, _ in per_rank) == sum(found["master_param"] for found in states)
    assert sum(rest for _, rest in per_rank) == sum(sum(found.values()) - found["master_param"] for found in states)
    assert len({masters for masters, _ in per_rank}) > 1, "nothing is cut to make them equal"


def test_the_rank_that_keeps_most_is_a_class_of_its_own() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", optimizer={"name": "dist_muon"}))
    assert report.status == "ok", report.problems
    ends = [rank.end_bytes or 0 for rank in report.ranks]
    heaviest = max(range(4), key=lambda rank: sum(_dealt_states(rank, {"dp_shard": 4})))
    assert [rank.end_bytes for rank in report.ranks if rank.ranks == (str(heaviest),)] == [max(ends)]
    # By component the mean of all ranks is told, of a single rank too.
    alone = place(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", optimizer={"name": "dist_muon"}),
                  rank=heaviest)
    assert all(rank.apportioned for rank in (*report.ranks, *alone.ranks))


def test_updated_parameters_are_gathered_from_all_ranks() -> None:
    """bf16, all of them and this rank's own again; then they go."""
    program = small.program_of("megatron", {"dp_shard": 4}, rank=1, model="llama-tiny", optimizer={"name": "dist_muon"})
    whole = small.plan_of("megatron", model="llama-tiny").graph.count()
    own = _dealt_states(1, {"dp_shard": 4})[0] // 4
    assert [amount for *_, amount in small.postings(program, "updated_parameters")] == [
        2 * (whole + own), -2 * (whole + own)]
    refused_with("illegal", "muon with dist optimizer is not supported", optimizer={"name": "dist_muon"},
             options={"use_distributed_optimizer": True})


# ---- whole parameters in 8 bits, as Bridge's recipes of Kimi K2 have them -------------------------------------------
WHOLE: dict[str, Any] = {"model": "llama-tiny", "optimizer": {"name": "dist_muon"}, "version": "main 2026-08-22",
                         "options": {"use_distributed_optimizer": False, "use_layer_wise_param_layout": False}}


def test_whole_parameters_may_be_in_8_bits() -> None:
    """A byte an element where bf16 had two; masters and moments of what is dealt stay."""
    narrow = {**WHOLE, "options": {**WHOLE["options"], "fp8_recipe": "tensorwise", "fp8_param_gather": True},
              "precision": {"compute": "fp8"}}
    wide = {**narrow, "options": {**narrow["options"], "fp8_param_gather": False}}
    small_ones, large_ones = (small.plan_of("megatron", {"dp_shard": 4}, **given) for given in (narrow, wide))
    fp8 = [placed for layer in small_ones.layers for placed in small_ones.of_layer(layer)
           if placed.policy.at_rest.dtype == "fp8" and not placed.spec.is_buffer]
    assert fp8
    assert all(placed.rest_bytes == placed.local for placed in fp8)
    assert small_ones.dealt == large_ones.dealt
    refused_with("illegal", "--fp8-param-gather only supported with distributed optimizer",
                 version="main 2026-08-22", precision={"compute": "fp8"}, model="llama-tiny",
                 options={"use_distributed_optimizer": False, "fp8_recipe": "tensorwise", "fp8_param_gather": True})
