"""Whole steps of Kimi-VL that Automodel wrapped itself, and its units, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.graph import build, model_config
from simcore.models.placed_blocks import MoonEnd
from simcore.models.vision_blocks import VisionPart
from simcore.results.report import RankReport
from simcore.simulate import simulate
from truth_cases import told_layouts
from wrapped_steps import measured_traffic, measured_units, traffic_of, units_of

TAPE = ROOT / "tests/truth/tape"
STORED, DRAWN = (json.loads((TAPE / f"automodel-{name}-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
                 for name in ("kimi", "drawn-kimi"))
"""Cases of `probe_automodel_kimi.py`, and those that `draw_automodel_kimi.py` draws."""
CASES: dict[str, Any] = {name: row for name, row in STORED.items() if "case" in row} | DRAWN
RUN = [name for name, row in CASES.items() if "traffic" in row]
SIZES = STORED["sizes"]
HIGHER = {"k14": 0.0033}
"""Cases whose peak is at most so much higher than measured, of 1: it stands in the last norm, of which `torch_fp32`
computes in fp32 beside its input (`probe_automodel_norm.py`), and the stand-in for it does not."""
LEFT_OUT = ("opt_state", "buffer")
"""Adam counts the steps of each parameter in 4 bytes; frequencies are cast with the model, or kept twice."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of configurations, one a case."""
    return tmp_path_factory.mktemp("kimi")


@cache
def asked(name: str, config: Path) -> Scenario:
    case, path = SIZES | CASES[name]["case"], config / f"{name}.json"
    path.write_text(json.dumps({"model_type": "kimi_vl", "vision_config": case["vision"],
                                "text_config": case["text"]}), encoding="utf-8")
    copies, frozen = case.get("replicas", 1), ["model.vision_tower"] * case["freeze"]["freeze_vision_tower"]
    training: dict[str, Any] = {
        "seq_len": case["seq"], "micro_batch_size": case["batch"], "images": case["images"], "frozen": frozen,
        "image_height": case["sides"][0], "image_width": case["sides"][1], "optimizer": {"implementation": "fused"}}
    return Scenario.model_validate({
        "name": "sees", "model": {"config": str(path)}, "framework": "automodel", "topology": "dgx-h100",
        "mesh": {"dp_shard": case["world"] // copies, "dp_replicate": copies, "ep": case["ep"]},
        "training": training})


NOT_YET: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"dp_shard": 8}, {}, "without expert parallelism"), ({"dp_shard": 4, "ep": 4, "pp": 2}, {}, "pp 2 of Kimi-VL"),
    ({"dp_shard": 4, "ep": 8, "cp": 2}, {}, "cp 2 of Kimi-VL"),
    ({"dp_shard": 8, "ep": 8}, {"recompute": "full"}, "recompute full of Kimi-VL"),
    ({"dp_shard": 8, "ep": 8}, {"images": 0}, "given text alone"),
    ({"dp_shard": 8, "ep": 8}, {"method": "lora", "frozen": [], "lora": {"rank": 8, "exclude_modules": [
        "*vision*", "*projector*", "*lm_head*"]}}, "adapters of kimi_vl"))


@pytest.mark.parametrize(("mesh", "changed", "words"), NOT_YET)
def test_what_was_not_measured_is_refused_by_name(mesh: dict[str, Any], changed: dict[str, Any], words: str,
                                                  config: Path) -> None:
    fields = asked("frozen", config).model_dump(exclude_unset=True)
    training = fields["training"] | {"global_batch_size": 16} | changed
    if not training["images"]:
        del training["image_height"], training["image_width"]
    report = simulate(Scenario.model_validate(fields | {"mesh": mesh, "training": training}))
    assert report.status == "error"
    assert "not yet" in str(report.problems[0])
    assert words in str(report.problems[0])


@cache
def ran(name: str, config: Path) -> RankReport:
    report = simulate(asked(name, config))
    assert report.status == "ok", report.problems
    return report.ranks[0]


def test_drawn_models_are_told() -> None:
    assert not [name for name, row in DRAWN.items() if "error" in row]
    assert told_layouts("tape/automodel-drawn-kimi-*") == (len(DRAWN), len(DRAWN) - len(HIGHER), len(HIGHER))
    assert len([name for name in DRAWN if name in RUN]) == 20


def test_parameters_are_those_of_automodels_class() -> None:
    small = {"model_type": "kimi_vl", "vision_config": SIZES["vision"], "text_config": STORED["text"]["routed"]}
    for name, fields in (("published", model_config("kimi-vl-a3b", None, "")), ("small", small)):
        graph, found = build(fields, "automodel"), dict[str, int]()
        for layer in graph.layers:
            block = graph.kinds[layer.kind].block
            module = "language_model" if not isinstance(block, VisionPart) else (
                "multi_modal_projector" if isinstance(block, MoonEnd) else "vision_tower")
            found[module] = found.get(module, 0) + sum(
                spec.numel for spec in graph.tensors[layer.kind] if not spec.is_buffer)
        assert found == STORED["parameters"][name]


@pytest.mark.parametrize("name", CASES)
def test_units_are_those_that_automodel_wraps(name: str, config: Path) -> None:
    """A frozen tower is the root's; one that is trained, and the projector, are units, element by element."""
    assert units_of(*prepare(asked(name, config))) == measured_units(CASES[name])


@pytest.mark.parametrize("name", RUN)
def test_the_peak_is_made_of_what_was_measured(name: str, config: Path) -> None:
    """To the byte: the tower's table of angles, which stays, is an activation of the measured step."""
    half = max((CASES[name][half] for half in ("forward", "backward")), key=lambda half: half["peak"])
    case, peak = SIZES | CASES[name]["case"], ran(name, config).peak
    assert peak is not None
    if name in HIGHER:
        assert half["peak"] < peak.allocated_bytes <= half["peak"] * (1 + HIGHER[name])
        return
    mine = {k: v for k, v in peak.by_category.items() if k not in LEFT_OUT}
    mine["activation"] += mine.pop("workspace")
    measured = {k: v for k, v in half["breakdown"].items() if k not in LEFT_OUT}
    measured["input"] -= 8 * case["batch"] * case["seq"]  # a mask of padding, which no layer reads
    wider, norms = mine["activation"] - measured["activation"], _statistics(case)
    assert wider in norms if "vision" in half["where"] or "embed" in half["where"] else wider == norms[-1]
    measured["activation"] += wider
    assert mine == measured


def _statistics(case: dict[str, Any]) -> range:
    """Bytes by which statistics of LayerNorms are larger on a GPU, in fp32, than on a CPU: of none to all."""
    height, width = case["sides"]
    patches = int(case["batch"] * case["images"] * (height // 14) * (width // 14))
    norms: int = 1 if case["freeze"]["freeze_vision_tower"] else 2 + 2 * int(case["vision"]["num_hidden_layers"])
    return range(0, 4 * patches * norms + 1, 4 * patches)


@pytest.mark.parametrize("name", RUN)
def test_traffic_is_what_was_measured(name: str, config: Path) -> None:
    assert traffic_of(row for row in ran(name, config).traffic if row.phase != "optimizer") == measured_traffic(
        CASES[name])
