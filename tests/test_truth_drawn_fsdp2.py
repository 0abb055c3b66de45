"""Layouts drawn at random (`tests/truth/draw_fsdp2.py`) against PyTorch's own `fully_shard`, to the byte.

`python tests/test_truth_drawn_fsdp2.py` prints what is exact and what is not, a line a case.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import truth_cases
from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.placement.mesh import Mesh
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op
from simcore.results.report import RankReport
from simcore.simulation.report import report
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import program_of

pytestmark = pytest.mark.usefixtures("_fused_attention")

FILES = ("fsdp2/drawn-torch-2.13.0.json", "fsdp2/drawn-embedding-torch-2.13.0.json")
PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer"}
CALL_PHASES = {Phase.FORWARD: "fwd", Phase.LOSS: "fwd", Phase.BACKWARD: "bwd", Phase.RECOMPUTE: "recompute",
               Phase.OPTIMIZER: "opt"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "uint8": "uint8", "int64": "int64"}
Row = dict[str, Any]
Call = tuple[Any, ...]


def unfolded(runs: list[list[int]]) -> list[int]:
    """Numbers that `tests/truth/oracle/rows.py` has folded into runs of a block, ``[times, *block]``."""
    return [n for times, *block in runs for n in block * times]


def rows() -> list[Row]:
    return [row for file in FILES for row in truth_cases.rows(file)]


def simulated(scenario: Scenario, rank: int) -> tuple[RankReport, Program]:
    """One rank's report, every microbatch written out."""
    parts = placed_simulation(scenario, rank=rank)
    parts.num_written = scenario.num_microbatches
    program = parts.programs[rank] = program_of(parts, parts.plans[0])
    return report(parts, series=False).ranks[0], program


def calls(program: Program, mesh: Mesh) -> list[Call]:
    """Collectives over more than one rank in the order of issue: what, phase, ranks, dtype, payload."""
    comms = {number: (kind, mesh.axis(axis).size, dtype)
             for (kind, axis, dtype), number in program.tables.comms.items() if not kind.startswith("copy")}
    return [(comms[slot][0], CALL_PHASES[Phase(phase)], *comms[slot][1:], amount)
            for (op, _, slot, amount, _, _), phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True)
            if op == Op.COLLECTIVE and slot in comms]


def upstream_calls(row: Row) -> list[Call]:
    kinds = [(kind, phase, size, DTYPES[dtype], payload) for kind, phase, size, dtype, payload in row["calls"]]
    return [kinds[n] for n in unfolded(row["order"])]


def counters(row: Row) -> int:
    """Adam's step counters, 4 bytes a tensor: the probe counts them, on a GPU they lie in host memory."""
    return int(row["breakdown"].get("opt_state", 0)) - int(row["placement"]["states_bytes"])


def differences(row: Row) -> dict[str, str]:
    """Differences between rankscope and torch; empty if all values are equal, to the byte."""
    asked, rank = truth_cases.fsdp2(row["spec"], row["name"]), row["spec"].get("rank", 0)
    try:
        found, program = simulated(asked, rank)
    except RankscopeError as error:
        return {} if "error" in row else {"refused": str(error.problems[0].message)}
    if "error" in row:
        return {"accepted": row["error"]}
    rest, placed = found.at_rest.values(), row["placement"]
    told = {
        "parameters": (sum(c.params_bytes for c in rest), placed["local_bytes"]),
        "storage": (sum(c.params_bytes for c in rest) + found.padding_bytes, placed["padded_bytes"]),
        "trained": (sum(c.num_trainable_params for c in rest), placed["trained"]),
        "states": (sum(c.optimizer_bytes for c in rest), placed["states_bytes"]),
        "gradients": (sum(c.grads_bytes for c in rest) + found.grads_padding_bytes, placed.get("grads_bytes", -1)),
        **_peaks(row, found),
    }
    out = {name: f"{ours} instead of {theirs}" for name, (ours, theirs) in told.items() if ours != theirs}
    return out | _calls_differ(calls(program, prepare(asked)[0].mesh), upstream_calls(row))


def _peaks(row: Row, found: RankReport) -> dict[str, tuple[object, object]]:
    """Without workspaces, which stand for the whole step: fake tensors have none."""
    assert found.peak is not None
    space, more = found.peak.by_category.get("workspace", 0), counters(row)
    told: dict[str, tuple[object, object]] = {
        "peak": (found.peak.allocated_bytes - space, row["peaks"]["step"] - more),
        "end": ((found.end_bytes or 0) - space, row["end"] - more)}
    for name, phase in PHASES.items():
        if name in row["peaks"]:
            told[f"peak of {phase}"] = found.peak.by_phase[phase] - space, row["peaks"][name] - more
    return told


def _calls_differ(ours: list[Call], theirs: list[Call]) -> dict[str, str]:
    if ours == theirs:
        return {}
    if sorted(ours) == sorted(theirs):
        at = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        return {"order": f"call {at}: {ours[at]} instead of {theirs[at]}"}
    more, less = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    return {"traffic": f"{dict(more)} instead of {dict(less)}"}


def _told(loaded: list[Row]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for row in loaded:
        found = differences(row)
        kind = next((k for k in ("refused", "accepted") if k in found), "differs" if found else
                    "both refuse" if "error" in row else "exact")
        seen[kind] += 1
        seen.update(k for k in found if k != kind)
        if found:
            yield f"{row['name']}: {row['spec']} {row.get('where')} {row.get('breakdown')}"
            yield from (f"    {name}: {text}" for name, text in found.items())
    yield str(dict(seen))


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row["name"]))
def test_a_drawn_layout_is_torchs_to_the_byte(row: Row) -> None:
    assert differences(row) == {}


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in _told(rows()))
