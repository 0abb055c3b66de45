"""Steps under transformers' own plans of tensor and expert parallelism and FSDP2, of drawn layouts, to the byte.

`tests/truth/draw_hf_tp.py` and, of mixtures, `draw_hf_mixtures.py`, `probe_hf_tp.py`; `draw_hf_experts.py`,
`probe_hf_ep.py`: placement, peaks of phases, every collective in its order.
"""

from __future__ import annotations

import pytest

import truth_cases
from test_truth_drawn_fsdp2 import differences

FILES = ("fsdp2/hf-tp-5.23.0.json", "fsdp2/hf-mixtures-5.23.0.json", "fsdp2/hf-experts-5.23.0.json")


@pytest.mark.usefixtures("_fused_attention")
def test_a_drawn_step_of_split_matrices_is_transformers() -> None:
    for file in FILES:
        rows = truth_cases.rows(file)
        assert sum("error" not in row for row in rows) >= 40
        found = {row["name"]: differences(row) for row in rows}
        assert {name: told for name, told in found.items() if told} == {}
