"""TransformerEngine's FusedAdam under Automodel: states as its code makes them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import small
from checkout import ROOT
from simcore.results.report import Report
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth/optimizers/te-fused-adam-d0067d0d.json"
BYTES = {"float32": 4, "bfloat16": 2, "int16": 2}
FORMATS = {"bfloat16": "bf16", "float32": "fp32"}


def _ran(options: dict[str, Any] | None = None, *, stored: str = "bf16", mesh: dict[str, int] | None = None,
         **optimizer: Any) -> Report:
    return simulate(small.scenario("automodel", mesh or {}, model="llama-tiny", precision={"params": stored},
                                   options=options or {}, optimizer={"implementation": "te", **optimizer}))


def test_each_parameter_has_the_states_that_the_real_class_makes() -> None:
    """Bytes of an element, of each state and case, on one rank and sharded over two."""
    whole = sum(part.num_params for part in _ran().ranks[0].at_rest.values())
    for name, row in json.loads(TRUTH.read_text(encoding="utf-8"))["cases"].items():
        made = row["arguments"]
        masters, narrow = made.get("master_weights", False), "exp_avg_dtype" in made
        if made.get("store_param_remainders") and not masters:
            continue  # refused as changing nothing, see below
        each = sum(BYTES[dtype] for dtype, _ in row["states"][0].values())
        assert each == sum(BYTES[dtype] for dtype, _ in row["states"][1].values()), name
        for mesh in ({}, {"dp_shard": 2}):
            report = _ran({"store_param_remainders": True} if made.get("store_param_remainders") else None,
                          stored=FORMATS[row["dtype"]], mesh=mesh, **({"master": "fp32"} if masters else {}),
                          **({"moments": "bf16"} if narrow else {}))
            assert report.status == "ok", report.problems
            held = sum(part.optimizer_bytes for part in report.ranks[0].at_rest.values())
            assert held == each * whole // mesh.get("dp_shard", 1), (name, mesh)


def test_its_step_needs_nothing_and_makes_the_states() -> None:
    """torch's foreach has the square roots of all second moments beside its own."""
    plain, torchs = _ran(), simulate(small.scenario("automodel", {}, model="llama-tiny", optimizer={
        "moments": "fp32"}))
    found = []
    for report in (plain, torchs):
        rank = report.ranks[0]
        assert rank.peak is not None
        assert rank.end_bytes is not None
        found.append(rank.peak.by_phase["optimizer"] - rank.end_bytes)
    params = sum(part.num_params for part in plain.ranks[0].at_rest.values())
    assert found[1] - found[0] == 4 * params


def test_what_is_refused() -> None:
    alone = {"store_param_remainders": True}
    cases: tuple[tuple[dict[str, Any] | None, dict[str, Any], str], ...] = (
            (None, {"name": "sgd"}, "not yet: sgd by TransformerEngine under automodel"),
            (None, {"master": "bf16"}, "FusedAdam only supports fp32/fp16 master weights."),
            (None, {"master": "fp16"}, "not yet: fp16 under automodel"),
            (None, {"moments": "int8"}, "not yet: int8 under automodel"),
            (None, {"paged": True}, "not yet: paged states of TE's FusedAdam"),
            (alone, {}, "store_param_remainders: changes nothing without masters"),
            (alone, {"implementation": "fused"}, "store_param_remainders: changes nothing but in TE's FusedAdam"),
            (None, {"implementation": "fused", "master": "fp32"}, "not yet: fp32 under automodel"))
    for options, optimizer, told in cases:
        report = _ran(options, **optimizer)
        assert report.status != "ok", told
        assert told in report.problems[0].message
