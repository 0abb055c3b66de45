"""Steps under accelerate's context parallelism, of layouts drawn at random, against the real libraries, to the byte.

`tests/truth/draw_accelerate_cp.py`, `probe_accelerate_cp.py`: placement, peaks of phases, every collective in order.
"""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from simcore.frameworks.common import kernels
from test_truth_drawn_fsdp2 import differences

FILE = "fsdp2/accelerate-cp-1.15.0.json"


@pytest.mark.usefixtures("_fused_attention")
def test_a_drawn_step_of_ranks_that_share_sequences_is_accelerates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "runs_math", lambda job, options: False)  # records are of a CPU's kernel
    rows = truth_cases.rows(FILE)
    assert sum("error" not in row for row in rows) >= 40
    found = {row["name"]: differences(_sent(row)) for row in rows}
    copied = {row["name"] for row in rows if "error" not in row and _is_of_copies_alone(row["spec"])}
    assert len(found) - len(copied) >= 40
    assert {name for name in copied if "cannot be used with pure data parallelism" in found[name]["refused"]} == copied
    assert {name: told for name, told in found.items() if told and name not in copied} == {}


def _is_of_copies_alone(spec: dict[str, Any]) -> bool:
    """True for copies without shards, which torch runs and accelerate refuses (parallelism_config.py:336)."""
    copies = spec.get("dp_replicate", 1)
    return bool(copies > 1 and spec.get("world", 8) == copies * spec["cp"])


def _sent(row: dict[str, Any]) -> dict[str, Any]:
    """The row with an all-to-all of torch's ring as what it is, a message to the next rank (no layer has experts)."""
    return row | {"calls": [["send_recv" if kind == "all_to_all" else kind, *call] for kind, *call in row["calls"]]
                  } if "calls" in row else row
