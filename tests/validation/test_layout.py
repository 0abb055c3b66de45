"""Equality of layouts: what changes where tensors are, or their size, makes another layout; all else does not."""

from __future__ import annotations

import json

import pytest

from checkout import ROOT
from simcore.frameworks.setup import prepare
from simcore.inputs.loading import read
from simcore.validation.layout import SIZES, VERSION, job_layout

FILE = ROOT / "scenarios" / "nano-ep4" / "automodel-8gpu.yaml"


def layout(*overrides: str) -> dict[str, str]:
    (entry,) = read([FILE], ["sweep=null", "training.method=lora", *overrides])
    assert entry.scenario is not None, entry.problems
    return job_layout(*prepare(entry.scenario))


def changed(*overrides: str) -> set[str]:
    first, second = layout(), layout(*overrides)
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


@pytest.mark.parametrize("override", [
    "name=other", "topology=dgx-b200", "training.global_batch_size=512", "training.num_tokens=1000000",
    "training.routing={imbalance: 2}", "limits.max_fill=0.9", "environment.expandable_segments=true",
    "checkpoint.save=none", "framework_version=0.7.0", "mesh.etp=1",
    "model={config: nemotron-3-nano-30b-a3b}", "implementation=automodel", "framework_options={dispatcher: deepep}",
    "training.precision.params=bf16", "framework_options={defer_fsdp_grad_sync: true}"])
def test_what_moves_no_tensor_is_the_same_layout(override: str) -> None:
    """Numbers of steps, the machine and the data; and defaults that are written out."""
    assert changed(override) == set()


@pytest.mark.parametrize(("override", "key"), [
    ("mesh.ep=8", "mesh.ep"), ("mesh={dp_replicate: 2, dp_shard: 4, ep: 4}", "mesh.dp_replicate"),
    ("training.method=full", "training.method"), ("training.recompute=full", "training.recompute"),
    ("training.precision.params=fp32", "training.precision.params"),
    ("framework_options={moe.reshard_after_forward: true}", "framework_options.moe.reshard_after_forward"),
    ("framework_options={dispatcher: torch}", "framework_options.dispatcher"),
    ("framework_version=0.4.0", VERSION), ("training.lora.exclude_modules=[]", "training.lora.exclude_modules"),
    ("training.optimizer.name=adamw", "training.optimizer.name"),
    ("model={config: nemotron-3-nano-30b-a3b, overrides: {vocab_size: 65536}}", "model"),
    ("training.seq_len=4096", "training.seq_len"), ("training.micro_batch_size=2", "training.micro_batch_size"),
    ("training.lora.rank=8", "training.lora.rank")])
def test_what_moves_a_tensor_is_another_layout(override: str, key: str) -> None:
    assert key in changed(override, "training.global_batch_size=16")


def test_only_sizes_are_left_to_a_recipe() -> None:
    assert layout().keys() | {"training.packed_length"} >= SIZES
    assert not {key for key in SIZES if key.startswith("mesh.")}


def test_lora_counts_only_where_it_is_used() -> None:
    assert "training.lora.rank" not in layout("training.method=full")
    assert json.loads(layout()["training.lora.exclude_modules"]) == ["*.out_proj"]
