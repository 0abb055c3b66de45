"""Steps of Gemma 4 with experts under FSDP2, drawn (`tests/truth/draw_gemma4_experts.py`), to the byte.

The probe casts parameters alone; `from_pretrained` makes numbers in buffers, one a layer and one behind the embedding,
in the type of the parameters too. The latter is cast for each product, and kept where the embedding is trained; what is
2 bytes long is no tensor here.
"""

from __future__ import annotations

from typing import Any

import pytest

import truth_cases
from test_truth_drawn_fsdp2 import differences

pytestmark = pytest.mark.usefixtures("_fused_attention")

FILES = ("fsdp2/gemma4-experts-torch-2.13.0.json", "fsdp2/gemma4-experts-fresh-torch-2.13.0.json")
ROWS = {row["name"]: row for file in FILES for row in truth_cases.rows(file)}



def in_type_of_parameters(row: dict[str, Any]) -> dict[str, Any]:
    """The row with numbers in buffers as `from_pretrained` makes them."""
    if "error" in row:
        return row
    spec = row["spec"]
    stored, computed = spec.get("store_dtype", "float32"), spec.get("mp_param", "bfloat16")
    buffers = 2 * (1 + spec["model"]["overrides"]["num_hidden_layers"]) * (stored == "bfloat16")
    kept = 2 * ((computed or stored) == "bfloat16" and "lora" not in spec)
    of_layers = {row["peaks"].get(phase, 0) for phase in ("fwd", "bwd", "fwd_bwd")}
    peaks = {name: peak - buffers - kept * (peak in of_layers)
             for name, peak in row["peaks"].items()}
    return {**row, "peaks": peaks, "end": row["end"] - buffers}


@pytest.mark.parametrize("name", ROWS)
def test_a_drawn_step_is_that_of_fsdp2(name: str) -> None:
    assert differences(in_type_of_parameters(ROWS[name])) == {}
