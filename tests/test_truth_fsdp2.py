"""FSDP2 against PyTorch's own `fully_shard`: traffic exactly, peaks, events and breakdowns (tests/truth/README.md)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.report import RankReport
from simcore.simulate import simulate

FILES = ("fsdp2/torch-2.13.0.json", "fsdp2/fresh-torch-2.13.0.json",
         "fsdp2/families-torch-2.13.0.json")
PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer"}
TRAFFIC_PHASES = {"forward": "fwd", "backward": "bwd", "recompute": "recompute", "optimizer": "opt"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "uint8": "uint8"}
NAIVE_MAMBA = "transformers' pure-torch scan: placement and traffic only"


def _rows() -> list[dict[str, Any]]:
    return [row for file in FILES for row in truth_cases.rows(file) if "error" not in row]


def _ids(row: dict[str, Any]) -> str:
    return str(row["name"])


def _simulated(row: dict[str, Any]) -> RankReport:
    report = simulate(truth_cases.fsdp2(row["spec"], row["name"]), rank=row["spec"].get("rank", 0))
    assert report.status == "ok", report.problems
    return report.ranks[0]


def _step_counters(row: dict[str, Any]) -> int:
    """The probe counts Adam's step counters (4 bytes a tensor); on a GPU they lie in host memory."""
    return int(row["phases"]["step"]["breakdown"].get("opt_state", 0)) and 4 * int(row["placement"]["params"])


def _place(where: str) -> str:
    """A replay that starts inside the experts' backward is told by the experts' name; rankscope tells the layer's."""
    return where.removesuffix("._checkpoint_wrapped_module.mlp.experts") if ":recompute_" in where else where


def _tensors(rank: RankReport) -> tuple[int, dict[str, int]]:
    """(peak, peak of each phase) without workspaces: the oracle ran on fake tensors, which no library multiplies.

    Workspaces stand for the whole step, so they move no peak. The trace has no such category; nothing else is left out.
    """
    assert rank.peak is not None
    kept = rank.peak.by_category.get("workspace", 0)
    return rank.peak.allocated_bytes - kept, {name: size - kept for name, size in rank.peak.by_phase.items()}


@pytest.mark.parametrize("row", _rows(), ids=_ids)
def test_placement(row: dict[str, Any]) -> None:
    rank = _simulated(row)
    rest = sum(c.params_bytes for c in rank.at_rest.values())
    assert rest == row["placement"]["local_bytes"]
    assert rest + rank.padding_bytes == row["placement"]["padded_bytes"]


@pytest.mark.parametrize("row", _rows(), ids=_ids)
def test_traffic(row: dict[str, Any]) -> None:
    rank = _simulated(row)
    got = sorted((t.collective, TRAFFIC_PHASES[t.phase], t.group_size, t.dtype, t.calls, t.payload_bytes)
                 for t in rank.traffic)
    want = sorted((t["collective"], t["phase"], t["group_size"], DTYPES[t["dtype"]], t["calls"], t["payload_bytes"])
                  for t in row["traffic"])
    assert got == want


@pytest.mark.parametrize("row", [r for r in _rows() if r["spec"].get("mamba") != "hf"], ids=_ids)
def test_peak(row: dict[str, Any]) -> None:
    rank = _simulated(row)
    assert rank.peak is not None
    truth = row["phases"]["step"]
    slack = _step_counters(row)
    allocated, by_phase = _tensors(rank)
    assert "workspace" not in truth["breakdown"]
    assert abs(allocated - truth["peak"]) <= slack + 0.001 * truth["peak"]
    assert rank.peak.event == _place(truth["where"])
    for category, size in truth["breakdown"].items():
        found = rank.peak.by_category.get(category, 0)
        assert abs(found - size) <= 0.005 * truth["peak"], f"{category}: {found} instead of {size}"
    for phase, name in PHASES.items():
        if phase in row["phases"]:
            peak = row["phases"][phase]["peak"]
            assert abs(by_phase[name] - peak) <= slack + 0.005 * peak, name
