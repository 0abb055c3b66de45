"""Falcon-H1: both mixers of a layer, placement, its factors' type, and what is refused."""

from __future__ import annotations

from typing import Any

import small
from simcore.models.blocks import Attention, Mamba2, Mlp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.results.report import Report
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "mamba_n_heads": 8,
                         "mamba_d_head": 32, "mamba_d_ssm": 256, "mamba_d_state": 32}
MESHES = {"fsdp2": {"dp_shard": 2}, "fsdp1": {"dp_shard": 2}, "ddp": {"dp_replicate": 2}, "zero1": {"dp_shard": 2},
          "automodel": {"dp_shard": 2}}


def graph(preset: str = "falcon-h1-7b", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


def ran(framework: str, mesh: dict[str, int], preset: str = "falcon-h1-7b", **more: Any) -> Report:
    return simulate(small.scenario(framework, mesh, model={"config": preset, "overrides": SMALL}, **more))


def test_two_mixers_and_an_mlp() -> None:
    kind = graph().kinds[1]
    assert kind.paired
    assert [branch.block for branch in kind.branches] == [
        Mamba2(3072, 24, 128, 1, 256, 4, 128), Attention(3072, 12, 2, 128, rotary=True), Mlp(3072, 12288)]
    assert [branch.norm for branch in kind.branches] == ["input_layernorm", "", "pre_ff_layernorm"]


def test_width_of_the_scan() -> None:
    """`mamba_d_ssm`, else `mamba_expand` times the hidden size."""
    widths = [graph(**changed).kinds[1].branches[0].block for changed in (
        {"mamba_d_ssm": 1024, "mamba_n_heads": 8}, {"mamba_d_ssm": None, "mamba_n_heads": 48})]
    assert [block.inner for block in widths if isinstance(block, Mamba2)] == [1024, 6144]


def test_it_runs() -> None:
    reports = {f"{framework}, {recompute}": ran(framework, mesh, recompute=recompute)
               for framework, mesh in MESHES.items() for recompute in ("none", "full")}
    assert {name: report.problems for name, report in reports.items() if report.status != "ok"} == {}


def test_factors_are_of_one_type_with_the_products() -> None:
    """They make what Mamba's kernel is given fp32 otherwise, and its projection takes no two types."""
    for framework in ("fsdp2", "fsdp1", "automodel"):
        report = ran(framework, MESHES[framework], precision={"params": "fp32"})
        assert report.problems[0].message.startswith("fp32 with bf16 products: expected mat1 and mat2"), framework
        peak = ran(framework, MESHES[framework]).ranks[0].peak
        assert peak is not None
        frequencies = 2 * 4 * 32 // 2
        assert peak.by_category["buffer"] == frequencies + 2 * 2 * (2 * 256 + 2 * 32 + 8), framework


def test_refused() -> None:
    (problem,) = ran("megatron", {"dp_shard": 2}).problems
    assert problem.message.partition(" (")[0] == "not yet: falcon_h1 in Megatron's layers"


def test_a_mixer_without_its_norm_keeps_no_statistics() -> None:
    """The scan's kernel gates its output itself: what the layers keep is the norm's reciprocal roots less.

    Of the smallest model, whose configuration says `mamba_rms_norm: false`.
    """
    peaks = []
    for normed in (True, False):
        model = {"config": "falcon-h1-0.5b", "overrides": SMALL | {"mamba_rms_norm": normed}}
        report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model=model))
        assert report.status == "ok", report.problems
        assert report.ranks[0].peak is not None
        peaks.append(report.ranks[0].peak.by_category["activation"])
    assert peaks[0] > peaks[1]
