"""Placement, byte for byte, against what the real frameworks put on each rank (tests/truth/README.md)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.results.report import RankReport
from simcore.simulate import place

COMPONENTS = {"embeddings": "embedding", "lora_dense": "adapters", "lora_expert": "expert_adapters"}
AUTOMODEL = ("placement/automodel-0.7.0.json", "placement/fresh-automodel-0.7.0.json")
MEGATRON = {
    "placement/megatron-core-0.16.1_bridge-0.3.1.json": "auto",
    "placement/fresh-megatron-core-0.16.1.json": "auto",
    "placement/megatron-main-2026-08-22.json": "main 2026-08-22",
}


def _cases(*files: str) -> list[Any]:
    return [pytest.param(row, file, id=f"{row['name']}-r{row['rank']}") for file in files
            for row in truth_cases.rows(file)]


def _by_component(rank: RankReport) -> dict[str, int]:
    return {name: c.params_bytes for name, c in rank.at_rest.items() if c.params_bytes}


def _expected(row: dict[str, Any]) -> dict[str, int]:
    return {COMPONENTS.get(name, name): size for name, size in row["bytes"].items() if size}


@pytest.mark.parametrize(("row", "file"), _cases(*AUTOMODEL))
def test_automodel_places_what_the_real_one_places(row: dict[str, Any], file: str) -> None:
    report = place(truth_cases.automodel(row["case"]), rank=row["rank"])
    if "error" in row:
        assert report.status == "illegal", row["error"]
        assert report.problems[0].rule
        return
    assert report.status == "ok", report.problems
    rank = report.ranks[0]
    rest = rank.at_rest.values()
    assert _by_component(rank) == _expected(row)
    assert sum(c.params_bytes for c in rest) == row["params_bytes"]
    assert sum(c.params_bytes for c in rest) + rank.padding_bytes == row["storage_bytes"]
    if row["case"].get("pp", 1) > 1:  # the pipeline probe reads parameters only
        return
    assert sum(c.num_trainable_params for c in rest) == row["trainable_local"]
    assert sum(c.grads_bytes for c in rest) == row["grad_bytes"]
    assert sum(c.optimizer_bytes for c in rest) == row["adam_bytes"]


@pytest.mark.parametrize(("row", "file"), _cases(*MEGATRON))
def test_megatron_places_what_the_real_one_places(row: dict[str, Any], file: str) -> None:
    report = place(truth_cases.megatron(row["case"], version=MEGATRON[file]), rank=row["rank"])
    if "error" in row or row["name"].startswith("bad-"):
        # "error": the configuration itself is no grouped-query attention (3 or 6 groups of 32 heads)
        assert report.status == ("error" if "kv" in row["name"] else "illegal"), row.get("error")
        assert report.problems[0].message
        return
    assert report.status == "ok", report.problems
    rank = report.ranks[0]
    rest = rank.at_rest.values()
    assert _by_component(rank) == _expected(row)
    assert sum(c.num_trainable_params for c in rest) == row["trainable_local"]
    assert sum(c.params_bytes for c in rest) == row["params_bytes"]
    assert sum(c.grads_bytes for c in rest) + rank.grads_padding_bytes == row["main_grad_bytes"]
    assert sum(c.optimizer_bytes for c in rest) == row["optimizer_bytes"]
    in_buffers = 2 * sum(buffer["numel_padded"] for buffer in row["ddp"].values())
    assert 2 * sum(c.num_trainable_params for c in rest) + rank.padding_bytes == in_buffers


@pytest.mark.parametrize("row", truth_cases.rows("placement/automodel-pp-0.7.0.json"), ids=str)
def test_automodel_pipeline_stages_hold_what_the_real_ones_hold(row: dict[str, Any]) -> None:
    report = place(truth_cases.automodel(row["case"]), rank=row["rank"])
    assert report.status == "ok", report.problems
    assert _by_component(report.ranks[0]) == _expected(row)
