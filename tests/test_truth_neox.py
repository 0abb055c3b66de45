"""Steps of GPT-NeoX under FSDP2, drawn (`tests/truth/draw_neox.py`), to the byte."""

from __future__ import annotations

import pytest

import truth_cases
from test_truth_drawn_fsdp2 import differences

pytestmark = pytest.mark.usefixtures("_fused_attention")

ROWS = {row["name"]: row for row in truth_cases.rows("fsdp2/neox-torch-2.13.0.json")}


@pytest.mark.parametrize("name", ROWS)
def test_a_drawn_step_is_that_of_fsdp2(name: str) -> None:
    assert differences(ROWS[name]) == {}
