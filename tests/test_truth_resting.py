"""Models with a vision tower that are given text alone against transformers, PEFT and bitsandbytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkout import ROOT
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Framework

CASES: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/resting-torch-2.13.0-transformers-5.23.0.json").read_text(
    encoding="utf-8"))


def resting(case: dict[str, Any], folder: Path, targets: list[str]) -> tuple[list[TensorSpec], Framework]:
    """Tensors of the tower beside the decoder, with the table of DDP that packs them."""
    (folder / "config.json").write_text(json.dumps(case["fields"]), encoding="utf-8")
    asked = Scenario.model_validate({
        "name": "rests", "model": str(folder / "config.json"), "framework": "ddp", "topology": "dgx-h100", "mesh": {},
        "framework_options": {"autocast": True, "prepare_model_for_kbit_training": "cast_back"},
        "training": {"method": "qlora", "seq_len": case["seq"], "images": 0,
                     "lora": {"rank": 4, "target_modules": targets}}})
    job, table = prepare(asked)
    return [spec for spec in job.graph.tensors[job.graph.layers[0].kind] if spec.rests], table


def test_beside_a_tower_that_rests_the_decoder_runs_as_alone() -> None:
    for name, case in CASES.items():
        assert case["step"] == {"more": [], "fewer": []}, name


def test_each_parameter_of_a_tower_that_rests_has_the_bytes_that_the_libraries_leave(tmp_path: Path) -> None:
    """Linears in 4 bits, biases, patches and positions in fp32, norms cast back to bf16."""
    for name, case in CASES.items():
        found, table = resting(case["case"], tmp_path, case["targets"])
        sizes = {spec.name: table.policy(spec).at_rest.num_bytes(spec.numel) for spec in found
                 if spec.module != "adapter" and not spec.is_buffer}
        assert sizes == case["packed"], name


def test_adapters_go_into_a_tower_by_their_names_though_it_rests(tmp_path: Path) -> None:
    for name, case in CASES.items():
        found, _ = resting(case["case"], tmp_path, case["targets"])
        adapted = [spec for spec in found if spec.module == "adapter"]
        assert sorted({spec.path.rpartition(".lora_")[0] for spec in adapted}) == case["adapted"], name
        assert not any(spec.trainable for spec in adapted), name
