"""Steps of models that read images beside a base in 4 bits, as axolotl prepares it: tests/truth/tape/README.md.

The tower is packed and frozen; what is neither a linear nor called a norm stays in fp32, and so does what its layers
hand on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import test_truth_vision_adapted as adapted
from checkout import ROOT
from every import expect_of_every
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import place

CASES: dict[str, Any] = json.loads((
    ROOT / "tests/truth/tape/vision-packed-torch-2.13.0-transformers-5.23.0.json").read_text(encoding="utf-8"))
_PLAIN = adapted.asked


@pytest.fixture(autouse=True)
def _cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapted, "CASES", CASES)
    monkeypatch.setattr(adapted, "asked", asked)


def asked(name: str, folder: Path) -> Scenario:
    made = _PLAIN(name, folder).model_dump(exclude_unset=True)
    eight = CASES[name]["case"].get("bits") == 8
    quantization = {"format": "int8"} if eight else {"format": "nf4", "double_quant": True}
    made["training"] |= {"method": "qlora", "quantization": quantization}
    made["framework_options"] |= {"prepare_model_for_kbit_training": "cast_back"}
    return Scenario.model_validate(made)


def test_peaks_of_a_step_are_those_that_were_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: adapted.expect_peaks(name, tmp_path))


def test_a_packed_tower_is_replayed_and_differentiated_as_measured(tmp_path: Path) -> None:
    expect_of_every(((name, name) for name in CASES), lambda name: adapted.expect_tower(name, tmp_path))


def test_parameters_in_fp32_are_those_that_are_not_cast_back(tmp_path: Path) -> None:
    for name, row in CASES.items():
        job, table = prepare(asked(name, tmp_path))
        plan = place(job.graph, job.mesh, table, 0)
        found = {f"{layer.path}.{placed.spec.name}": list(placed.spec.shape) for layer in job.graph.layers
                 for placed in plan.of_layer(layer.index) if placed.policy.at_rest.dtype == "fp32"
                 and not (placed.spec.is_buffer or placed.spec.trainable)}
        assert found == row["wide"], name
