"""The whole way, from a scenario to a report; and through the command line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.simulate import check, place, simulate

MESH = {"dp_shard": 3}


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_memory_without_time_is_the_memory_with_it(name: str) -> None:
    asked = small.scenario(name, MESH, microbatches=2)
    timed, untimed = simulate(asked), simulate(asked, timed=False)
    assert timed.time is not None
    assert untimed.time is None
    assert timed.ranks == untimed.ranks


def test_a_host_that_loses_its_lead_is_written_out_until_it_has_none() -> None:
    """The first gathers take longer than the host needs to issue three microbatches; the fourth waits for the host."""
    asked = small.scenario("megatron", {"dp_shard": 2}, microbatches=5, seq_len=1, recompute=["mlp"], topology="mi300x",
                           model={"config": "qwen3-8b", "overrides": {"num_hidden_layers": 2, "vocab_size": 131072}})
    few, whole = (simulate(asked, whole=whole).time for whole in (False, True))
    assert few is not None
    assert whole is not None
    assert few.step_s == pytest.approx(whole.step_s, rel=1e-9)


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_one_rank_is_that_rank(name: str) -> None:
    asked = small.scenario(name, MESH)
    alone = simulate(asked, rank=2).ranks
    assert [r.ranks for r in alone] == [("2",)]
    whole = next(r for r in simulate(asked, fold=False, timed=False).ranks if r.ranks == ("2",))
    assert (alone[0].peak, alone[0].traffic) == (whole.peak, whole.traffic)


def test_a_rank_that_there_is_not() -> None:
    report = simulate(small.scenario("fsdp2", MESH), rank=3)
    assert report.status == "error"
    assert "expected a rank from 0 to 2, got 3" in report.problems[0].message


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_placement_is_what_the_simulation_begins_with(name: str) -> None:
    asked = small.scenario(name, MESH)
    placed, simulated = place(asked), simulate(asked, timed=False)
    assert all(r.peak is None for r in placed.ranks)
    assert sum(r.num_ranks for r in placed.ranks) == 3
    held = [sum(r.num_ranks * sum(c.params_bytes for c in r.at_rest.values()) for r in report.ranks)
            for report in (placed, simulated)]
    mean = 0 if name != "megatron_fsdp" else 1e-4  # parts of buckets: a simulated rank has the mean of its class
    assert held[0] == pytest.approx(held[1], rel=mean, abs=0)


def test_a_check_says_only_whether() -> None:
    report = check(small.scenario("fsdp2", MESH))
    assert (report.status, report.ranks, report.verdict) == ("ok", (), None)


def test_a_refusal_is_a_report() -> None:
    for ask in (simulate, place, check):
        report = ask(small.scenario("megatron", {"tp": 3}))
        assert report.status == "illegal"
        assert report.problems[0].rule
        assert report.ranks == ()


@pytest.mark.parametrize(("framework", "model"), [("zero2", "gemma-2-2b"), ("automodel", "mamba2-130m")])
def test_layers_that_are_not_modelled_are_told_at_the_models_line(framework: str, model: str) -> None:
    """Layers know no file."""
    (problem,) = simulate(small.scenario(framework, {}, model=model)).problems
    assert problem.where == "small.json:1"


def test_what_is_not_modelled_is_an_error() -> None:
    report = simulate(small.scenario("fsdp1", {"dp_shard": 2, "tp": 2}))
    assert report.status == "error"
    assert "not yet" in report.problems[0].message


def test_the_series_holds_the_peak() -> None:
    (rank,) = simulate(small.scenario("megatron", {"dp_shard": 2}, microbatches=2), series=True).ranks
    assert rank.memory is not None
    assert rank.peak is not None
    assert max(map(sum, zip(*rank.memory.values, strict=True))) == rank.peak.allocated_bytes
    assert list(rank.memory.time_s) == sorted(rank.memory.time_s)
    assert list(rank.memory.event_index) == sorted(rank.memory.event_index)


def test_more_tokens_take_more() -> None:
    short, long = (simulate(small.scenario("fsdp2", {"dp_shard": 2}, seq_len=n)) for n in (64, 131_072))
    assert short.time is not None
    assert long.time is not None
    assert short.time.step_s < long.time.step_s
    assert short.ranks[0].peak is not None
    assert long.ranks[0].peak is not None
    assert short.ranks[0].peak.allocated_bytes < long.ranks[0].peak.allocated_bytes


@pytest.mark.parametrize("command", ["run", "place", "check"])
def test_the_command_line_reaches_the_engine(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "simcore", command, "scenarios/first-look/first-look.yaml"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, "first-look" in done.stdout) == (0, True), done.stderr


def test_no_more_memory_than_the_device_has() -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 2})
    limits = asked.limits.model_copy(update={"usable_memory": "900 GiB"})
    report = simulate(asked.model_copy(update={"limits": limits}))
    assert report.status == "error"
    assert report.problems[0].message.startswith("usable_memory: expected at most the 79.65 GiB of NVIDIA H100")


_NO_ATTENTION = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}}


@pytest.mark.parametrize("model", [
    {"config": "zamba2-1.2b", "overrides": {"num_hidden_layers": 2, "layers_block_type": ["mamba", "mamba"]}},
    {"config": "llama-3.3-nemotron-super-49b", "overrides": {"num_hidden_layers": 1, "block_configs": [_NO_ATTENTION]}},
    {"config": "llama-3.3-nemotron-super-49b", "overrides": {"num_hidden_layers": 2, "block_configs": [
        _NO_ATTENTION, {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 1.0}}]}},
    {"config": "bamba-9b", "overrides": {"num_hidden_layers": 1, "attn_layer_indices": []}}, "llama-tiny"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("framework", ["fsdp2", "ddp", "zero2"])
def test_no_microbatch_leaves_anything_behind(framework: str, recompute: str, model: Any) -> None:
    """Tables of positions die with the microbatch, where no layer rotates anything too."""
    ends = {simulate(small.scenario(framework, {}, microbatches=count, model=model, recompute=recompute), timed=False,
                     whole=True).ranks[0].end_bytes for count in (2, 3, 7)}
    assert len(ends) == 1
