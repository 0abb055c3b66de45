"""Layers with experts whose parts torchtitan compiles one by one, against Inductor's own code between eager operators.

Drawn layouts (`tests/truth/draw_titan.py --compiled`), measured by `tests/truth/probe_titan_parts.py`.
"""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from compiled_tape import changes_of, measured_of, top
from simcore.models.graph import build, model_config
from simcore.operators.torchtitan import implementation as torchtitan
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param
from test_truth_torchtitan import preset, scenario_of
from truth_cases import told_layouts

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-parts-0.2.2-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
NEAR = 0.002
"""Share of the highest moment: columns of norms, masks and temporary scores of the router."""
ORDER = 0.1
"""Inductor orders the kernels of Qwen3's attention in backward by what it reckons of memory; here is one order."""


def recorded(case: dict[str, Any]) -> RecordedLayer:
    """The last layer, with experts of one rank of `ep`."""
    fields = scenario_of({"world": 1, **case})["model"]["overrides"]
    graph = build(model_config(preset(case), fields, "test"), "torchtitan")
    number = next(layer.kind for layer in reversed(graph.layers) if graph.kinds[layer.kind].block is None)
    ep, mode, params = case["ep"], case["checkpoint"], dict[str, Param]()
    for spec in (one for one in graph.tensors[number] if not one.is_buffer):
        first, *rest = spec.shape
        first //= ep if spec.component == "routed_experts" else 1
        params[spec.name] = Param(spec.name, (first, *rest), "bf16", trainable=True)
    options = TorchtitanOptions(compiled_blocks=True, early_stop=case.get("early_stop", False))
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, "torchtitan", {"op": "per_op"}.get(mode, mode),
                        ep=ep, options=options)
    return torchtitan.record(graph.kinds[number], run, {}, {})


def apart(row: dict[str, Any]) -> dict[str, float]:
    """Differences, as shares of the highest measured moment: of the moment itself and of net bytes."""
    tape, found = recorded(row["case"]), dict[str, float]()
    for at in ("forward", "backward"):
        mine, truth = changes_of(getattr(tape, at), ()), measured_of(row, at)
        if tape.rest.rows and at == "forward":  # places of rows of the step before, which is not logged
            mine.remove(-sum(row[3] for row in tape.rest.rows))
        found[f"{at} top"] = abs(top(mine) - top(truth)) / top(truth)
        found[f"{at} net"] = abs(sum(mine) - sum(truth)) / top(truth)
    return found


def test_drawn_layers_hold_what_inductor_s_code_and_the_eager_operators_do() -> None:
    found = {name: apart(row) for name, row in CASES.items()}
    tops = {name: one.pop("backward top") for name, one in found.items()}
    assert {name: one for name, one in found.items() if max(one.values()) > NEAR} == {}
    assert {name: top for name, top in tops.items() if top > ORDER} == {}
    others = sum(top > NEAR for top in tops.values())
    assert told_layouts("tape/torchtitan-parts-*") == (len(CASES), len(CASES) - others, others, round(100 * max(
        tops.values())))


def test_parts_run_fewer_kernels_than_eager_operators() -> None:
    """Pointwise chains of router, reorderer, attention and MLP are one kernel each."""
    case = {**next(iter(CASES.values()))["case"], "ep": 1, "checkpoint": "none"}
    compiled = recorded(case)
    kernels = sum(row[0] == Op.COMPUTE for row in compiled.forward.rows)
    assert kernels < 40
