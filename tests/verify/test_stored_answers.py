"""Layouts of `tests/truth/verified/`: questions to each framework and its answers, beside the engine's answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.loading import changed, load
from simcore.inputs.scenario import Scenario
from simcore.simulation.simulation import placed_simulation
from simcore.verify.compare import Line, compared
from simcore.verify.shrink import smaller
from simcore.verify.sides.found import found_of
from simcore.verify.sides.registry import side_of
from simcore.verify.verify import asked_case

LAYOUTS = sorted((ROOT / "tests/truth/verified").glob("*.yaml"))


def small(file: Path) -> Scenario:
    (scenario,) = load(file)
    return smaller(scenario, None, side_of(scenario).most_tokens)[0]


def stored(file: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    return row


def lines(scenario: Scenario, file: Path) -> tuple[Line, ...]:
    """The engine's answer to a scenario beside what the framework answered to the file's."""
    side = side_of(scenario)
    skipped = asked_case(side, scenario, 0)[1]
    return compared(side.ours(placed_simulation(scenario, rank=0)), found_of(stored(file)["answer"]), skipped)


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_a_framework_is_asked_what_was_stored(file: Path) -> None:
    case, _ = asked_case(side_of(small(file)), small(file), 0)
    assert json.loads(json.dumps(case)) == stored(file)["case"]


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_the_engine_answers_what_the_framework_answers(file: Path) -> None:
    found = lines(small(file), file)
    assert [line for line in found if line.difference] == []
    assert sum(line.num_compared for line in found) > 30


WRONG: dict[str, dict[str, Any]] = {
    "automodel-nano-ep": {"mesh.ep": 4}, "fsdp2-llama": {"mesh.dp_shard": 8}, "hsdp-llama": {"mesh.dp_replicate": 1},
    "megatron-qwen3-tp-ep": {"mesh.etp": 2}, "qlora-llama": {"training.quantization.double_quant": False},
    "zero3-llama": {"framework_options": {"stage3_prefetch_bucket_size": 1_000_000}}}
"""A key of each layout that makes it another one."""


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_another_layout_differs(file: Path) -> None:
    found = lines(changed(small(file), WRONG[file.stem]), file)
    assert [line for line in found if line.difference]
