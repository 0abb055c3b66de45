"""Packs: rows of tokens, sequences in them, and what they change of memory and time."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.inputs.training import Training
from simcore.placement.packing import Packing, pack_sequences
from simcore.results.report import Report
from simcore.simulate import simulate


@pytest.mark.parametrize(("given", "made"), [
    ({"micro_batch_size": 3}, Packing(3, 4096, 0, 4096)),
    ({"micro_batch_size": 3, "lengths": "packed"}, Packing(1, 3 * 4096, 3, 4096)),
    ({"lengths": "packed", "packed_length": 512}, Packing(1, 4096, 8, 512)),
    ({"lengths": "packed", "packed_length": 3072}, Packing(1, 4096, 2, (3072**2 + 1024**2) // 4096)),
    ({"lengths": "packed", "packed_length": 8192, "micro_batch_size": 2}, Packing(1, 8192, 2, 4096))])
def test_a_microbatch_of_packs_is_one_row(given: dict[str, Any], made: Packing) -> None:
    assert pack_sequences(Training(seq_len=4096, **given)) == made


def test_a_length_of_packed_sequences_needs_packs() -> None:
    with pytest.raises(ValueError, match="expected lengths: packed"):
        Training(seq_len=4096, packed_length=512)


def ran(**given: Any) -> Report:
    report = simulate(small.scenario("megatron", **given))
    assert report.status == "ok", report.problems
    return report


def test_shorter_sequences_take_less_time_for_the_same_tokens() -> None:
    wide = {"config": "llama-tiny", "overrides": {"hidden_size": 4096, "intermediate_size": 14336, "head_dim": 1024}}
    long, short = (ran(lengths="packed", seq_len=8192, model=wide, **given) for given in (
        {}, {"packed_length": 100}))
    assert long.time is not None
    assert short.time is not None
    assert short.time.forward_s < long.time.forward_s


def test_a_pack_of_two_is_one_row_of_twice_the_tokens() -> None:
    two, one = (ran(lengths="packed", model="llama-tiny", seq_len=seq, micro_batch_size=batch) for seq, batch in
                ((64, 2), (128, 1)))
    peaks = [report.ranks[0].peak for report in (two, one)]
    assert len({peak.allocated_bytes for peak in peaks if peak}) == 1


def test_context_parallel_ranks_have_their_part_of_a_pack() -> None:
    """Both ranks have half of the queries of each of 16 sequences; they see all keys of their sequence."""
    reports = [ran(lengths="packed", packed_length=64, seq_len=1024, model="llama-tiny", mesh={"cp": cp})
               for cp in (1, 2)]
    peaks = [report.ranks[0].peak for report in reports]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[1].by_category["activation"] < 0.6 * peaks[0].by_category["activation"]


def test_what_nobody_said_of_lengths_is_an_assumption() -> None:
    told = {a.what: a.value for a in ran(lengths="packed").assumptions}
    assert told["training.packed_length"] == "one sequence of 64 tokens fills each pack"
    for given in ({}, {"lengths": "packed", "packed_length": 32}):
        assert "training.packed_length" not in {a.what for a in ran(**given).assumptions}


@pytest.mark.parametrize(("framework", "given", "status", "rule"), [
    ("megatron", {"options": {"transformer_impl": "local"}}, "illegal", "not supported by DotProductAttention"),
    ("megatron", {"options": {"attention_backend": "unfused"}}, "error", "attention that is not fused")])
def test_what_is_refused(framework: str, given: dict[str, Any], status: str, rule: str) -> None:
    report = simulate(small.scenario(framework, lengths="packed", **given))
    assert report.status == status
    assert rule in report.problems[0].message


def test_megatron_fsdp_packs_and_keeps_its_optimizer_on_the_device() -> None:
    assert simulate(small.scenario("megatron_fsdp", {"dp_shard": 2}, lengths="packed")).status == "ok"
    refused = simulate(small.scenario("megatron_fsdp", {"dp_shard": 2}, offload={"optimizer": "host"}))
    assert "optimizer outside the device under megatron_fsdp" in refused.problems[0].message
