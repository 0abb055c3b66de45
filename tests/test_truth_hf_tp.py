"""Steps under transformers' own plans of tensor and expert parallelism and FSDP2, of drawn layouts, to the byte.

`tests/truth/draw_hf_tp.py` and, of mixtures, `draw_hf_mixtures.py`, `probe_hf_tp.py`; `draw_hf_experts.py`,
`probe_hf_ep.py`: placement, peaks of phases, every collective in its order. What upstream stops at beside it
(`draw_hf_tp_beside.py`, `probe_hf_tp_beside.py`) is refused in its words.
"""

from __future__ import annotations

import re

import pytest

import truth_cases
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.setup import prepare
from test_truth_drawn_fsdp2 import Row, differences

FILES = ("fsdp2/hf-tp-5.23.0.json", "fsdp2/hf-mixtures-5.23.0.json", "fsdp2/hf-experts-5.23.0.json")
BESIDE = "fsdp2/hf-tp-beside-5.23.0.json"
WORDS = re.compile(r"(is invalid for input of size|compress_statistics|cannot import name 'ReplicateParallel')")


@pytest.mark.usefixtures("_fused_attention")
def test_a_drawn_step_of_split_matrices_is_transformers() -> None:
    for file in FILES:
        rows = truth_cases.rows(file)
        assert sum("error" not in row for row in rows) >= 40
        found = {row["name"]: differences(_without_scale(row)) for row in rows}
        assert {name: told for name, told in found.items() if told} == {}


def _without_scale(row: Row) -> Row:
    """Row of a Gemma without 2 bytes: the embedding's scale, a tensor there (`GemmaTextScaledWordEmbedding`).

    It lives in forward and backward, whether ranks split matrices or not.
    """
    if not row["name"].startswith("gemma-"):
        return row
    return {**row, "peaks": {name: size - 2 * (name != "opt") for name, size in row["peaks"].items()}}


def test_what_upstream_stops_at_is_refused_in_its_words() -> None:
    """PEFT's adapters, of 16 or 4 bits, and accelerate's context parallelism: 32 layouts or more of each."""
    found = {}
    for row in truth_cases.rows(BESIDE):
        spec, said = row["spec"], WORDS.search(row["error"])
        asked = truth_cases.fsdp2({**spec, "store_dtype": "bfloat16"}, row["name"])
        if "storage" in spec:
            asked = asked.model_copy(update={"training": asked.training.model_copy(update={"method": "qlora"})})
        try:
            prepare(asked)
        except IllegalLayout as told:
            if said is None or said[0] not in str(told):
                found[row["name"]] = str(told)
        except NotYet as told:
            found[row["name"]] = str(told)
        else:
            found[row["name"]] = "accepted"
    assert found == {}
