"""FSDP2 against PyTorch's own `fully_shard`: traffic exactly, peaks, events and breakdowns (tests/truth/README.md)."""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.results.report import RankReport
from simcore.simulate import check, simulate

pytestmark = pytest.mark.usefixtures("_fused_attention")

FILES = ("fsdp2/torch-2.13.0.json", "fsdp2/fresh-torch-2.13.0.json",
         "fsdp2/families-torch-2.13.0.json")
PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer"}
TRAFFIC_PHASES = {"forward": "fwd", "backward": "bwd", "recompute": "recompute", "optimizer": "opt"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "uint8": "uint8"}
NAIVE_MAMBA = "transformers' pure-torch scan: placement and traffic only"


def _rows() -> list[dict[str, Any]]:
    return [row for file in FILES for row in truth_cases.rows(file) if "error" not in row]


def _refused() -> list[dict[str, Any]]:
    return [row for file in FILES for row in truth_cases.rows(file) if "error" in row]


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
    """The probe knows groups by their size: calls in two groups of one size are told as one."""
    got = [(t.collective, TRAFFIC_PHASES[t.phase], t.group_size, t.dtype, t.calls, t.payload_bytes)
           for t in _simulated(row).traffic]
    want = [(t["collective"], t["phase"], t["group_size"], DTYPES[t["dtype"]], t["calls"], t["payload_bytes"])
            for t in row["traffic"]]
    assert _summed(got) == _summed(want)


def _summed(rows: list[tuple[str, str, int, str, int, int]]) -> dict[tuple[object, ...], tuple[int, int]]:
    """(calls, payload bytes) by collective, phase, group size and type."""
    sums: dict[tuple[object, ...], tuple[int, int]] = {}
    for *key, calls, payload in rows:
        before = sums.get(tuple(key), (0, 0))
        sums[tuple(key)] = before[0] + calls, before[1] + payload
    return sums


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


@pytest.mark.parametrize("row", _refused(), ids=_ids)
def test_what_torch_refuses(row: dict[str, Any]) -> None:
    """Illegal in torch's own words; what a parameter group of its own avoids is said to be assumed (rows `-apart`)."""
    said = row["error"].partition(": ")[2].split(". ")[0]
    for report in (check(truth_cases.fsdp2(row["spec"])), simulate(truth_cases.fsdp2(row["spec"]))):
        if "mixed torch.Tensor and DTensor" in said:
            (found,) = (one for one in report.assumptions if "two parameter groups" in one.value)
            assert "got mixed torch.Tensor and DTensor" in found.source
        else:
            (problem,) = report.problems
            assert report.status == "illegal"
            assert problem.message.startswith(said.rstrip("."))
            assert problem.rule.startswith("torch 2.13")


@pytest.mark.parametrize("changed", [{"store_dtype": "float32"}, {"optim": "adamw_forloop"}, {"optim_in_bwd": True}])
def test_slices_of_another_type_or_updated_one_by_one_need_no_group_of_their_own(changed: dict[str, Any]) -> None:
    row = next(row for row in _refused() if "mixed" in row["error"])
    found = check(truth_cases.fsdp2(row["spec"] | changed))
    assert found.status == "ok"
    assert not [one for one in found.assumptions if "parameter groups" in one.value]
