"""Limits of what a file may ask for: each is there, told at its line, and keeps the machine."""

from __future__ import annotations

import ast
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simcore.program.lower as lowering
import small
from checkout import ROOT
from simcore.errors import InputError
from simcore.inputs import bounds
from simcore.inputs.quantity import Quantity
from simcore.inputs.scenario import scenario_schema
from simcore.models.config import Config
from simcore.pipeline.schedule import lowered_microbatches
from simcore.program import row_cache as held
from simcore.results.report import Report
from simcore.simulate import place, rows_of, simulate
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step_length import check_rows, num_rows

SIMULATION = importlib.import_module("simcore.simulation.step")
UNBOUNDED = {"alpha", "concentration", "weight_decay"}
"""Numbers of a scenario that count nothing."""


def deep(num_layers: int, model: str = "llama-3.2-1b") -> dict[str, Any]:
    return {"config": model, "overrides": {"num_hidden_layers": num_layers}}


# ---- each number has one ---------------------------------------------------------------------------------------------
def test_every_number_of_a_scenario_has_a_most() -> None:
    schema = scenario_schema()
    blocks = [schema, *schema["$defs"].values()]
    numbers = {(name, json.dumps(branch)) for block in blocks for name, field in block.get("properties", {}).items()
               for branch in _numbers(field) if "maximum" not in branch and "exclusiveMaximum" not in branch}
    assert {name for name, _ in numbers} == UNBOUNDED


def _numbers(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Branches that are numbers, those of lists too."""
    for branch in (*field.get("anyOf", ()), *field.get("oneOf", ()), *([field["items"]] if "items" in field else ())):
        yield from _numbers(branch)
    if field.get("type") in ("integer", "number") and "enum" not in field:
        yield field


def test_every_number_of_a_configuration_has_a_most() -> None:
    """Fields that families read, by the calls in their files."""
    files = (path for path in (ROOT / "simcore").rglob("*.py") if "recipes" not in path.parts)  # those read other keys
    read = {name for path in files for name in _fields(ast.parse(path.read_text("utf-8")))}
    assert len(read) > 60
    assert read - set(bounds.CONFIG) == set()


def _fields(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "integer":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


@pytest.mark.parametrize("field", bounds.CONFIG)
def test_a_configuration_is_held_to_it(field: str) -> None:
    most = bounds.CONFIG[field]
    assert Config({field: most}, "m.json:1").integer(field) == most
    for wrong in (most + 1, 10**30):
        with pytest.raises(InputError, match=f"m.json:1: model configuration: {field}: expected an integer from 1 to "
                                             f"{most:,}, got {str(wrong)[:40]}"):
            Config({field: wrong}, "m.json:1").integer(field)


def test_quantities_have_a_least_and_a_most() -> None:
    for kind in Quantity.__subclasses__():
        least, most = (edge * (100 if kind.unit == "%" else 1) for edge in bounds.QUANTITIES[kind.unit])
        more = {"value": f"{most * 10:.0f} {kind.unit}", "date": "2026-05"}
        with pytest.raises(ValueError, match=r"must be (from|more than)"):
            kind.model_validate(more if kind.unit == "USD/h" else more["value"])
        if least > 0:
            less = {"value": f"{least / 10:.12f} {kind.unit}", "date": "2026-05"}
            with pytest.raises(ValueError, match=r"must be (from|more than)"):
                kind.model_validate(less if kind.unit == "USD/h" else less["value"])


def test_layers_that_come_as_letters_are_counted() -> None:
    letters = {"num_hidden_layers": None, "hybrid_override_pattern": "M" * (bounds.LAYERS + 1)}
    report = simulate(small.scenario("fsdp2", model={"config": "nemotron-3-nano-30b-a3b", "overrides": letters}))
    assert [problem.message for problem in report.problems] == [
        "model configuration: num_hidden_layers: expected at most 10,000 layers, got 10,001"]


def test_layers_that_differ_are_counted() -> None:
    blocks = [{"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 1 + i / 16}} for i in range(600)]
    overrides = {"block_configs": blocks, "num_hidden_layers": 600}
    report = simulate(small.scenario("fsdp2", model={
        "config": "llama-3.1-nemotron-ultra-253b", "overrides": overrides}, implementation="hf"))
    assert "expected at most 512 layers that differ" in report.problems[0].message


# ---- a step that is too long ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("framework", "mesh", "given"), [
    ("fsdp2", {"dp_shard": 8}, {"microbatches": 2**20, "model": deep(10_000)}),
    ("zero3", {"dp_shard": 8}, {"microbatches": 2**20, "model": deep(10_000)}),
    ("megatron", {"pp": 1000}, {"microbatches": 16000, "model": deep(10_000), "pipeline": {"virtual_stages": 10}}),
    ("megatron", {"pp": 100}, {"microbatches": 16000, "model": deep(1000)}),
    ("fsdp2", {"dp_shard": 8}, {"model": deep(10_000), "options": {"prefetch": 10_000}}),
    ("automodel", {"pp": 2, "dp_shard": 2}, {"microbatches": 2**20, "model": "qwen2.5-7b"}),
], ids=["layers and microbatches", "zero3", "virtual stages", "stages", "prefetch", "buffers of stages"])
def test_a_product_is_refused_before_it_is_written_out(framework: str, mesh: dict[str, int],
                                                       given: dict[str, Any]) -> None:
    start = time.process_time()
    report = simulate(small.scenario(framework, mesh, **given))
    assert time.process_time() - start < 20
    told = report.problems[0].message
    most = "16,000,000" if len(mesh) == 1 and "pp" in mesh else "4,500,000"
    assert told.startswith(f"expected a step of at most {most} operations where it is written out, got about")
    for key in ("layers (model)", "training.global_batch_size", "training.pipeline", "mesh.pp"):
        assert key in told


def test_many_kinds_of_ranks_may_have_more_rows_together() -> None:
    """64 stages of three, each another kind of ranks: more in all than one kind may have."""
    found = placed_simulation(small.scenario("megatron", {"pp": 64}, microbatches=4096, model=deep(192), pipeline={
        "virtual_stages": 3}))
    found.num_written = lowered_microbatches(found.framework.schedule, 4096)
    assert bounds.ROWS < num_rows(found) < bounds.ALL_ROWS
    check_rows(found)


@pytest.mark.parametrize(("framework", "given"), [
    ("fsdp2", {"microbatches": 8, "model": deep(64)}),
    ("zero3", {"microbatches": 8, "model": deep(64)}),
    ("megatron", {"microbatches": 8, "model": deep(64)}),
    ("megatron", {"options": {"bucket_size": 4096}, "model": {"config": small.TINY, "overrides": {
        "n_routed_experts": 2048}}}),
    ("zero3", {"implementation": "hf4", "model": {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}}}),
], ids=["fsdp2", "zero3", "megatron", "buckets", "experts"])
def test_what_is_written_out_is_what_was_told(framework: str, given: dict[str, Any],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of rows is near the rows themselves, also where most are calls over buckets or of expert modules."""
    made, rows = SIMULATION.program_of, list[int]()

    def program(*given: Any) -> Any:
        found = made(*given)
        rows.append(len(found.places))
        return found

    monkeypatch.setattr(SIMULATION, "program_of", program)
    asked = small.scenario(framework, {"dp_shard": 4}, **given)
    assert simulate(asked, timed=False).status == "ok"
    assert 0.6 < rows_of(asked) / sum(rows) < 1.6


def test_shared_layers_are_counted() -> None:
    overrides = {"num_hidden_layers": 300, "layers_block_type": ["hybrid"] * 300}
    report = simulate(small.scenario("fsdp2", model={"config": "zamba2-7b", "overrides": overrides}))
    assert "expected at most 256 hybrid layers, got 300" in report.problems[0].message


def test_numbers_to_draw_are_counted() -> None:
    """Fewer microbatches are drawn where draws are many; more than that is refused with what makes them so many."""
    routing = {"seed": 1, "draws": 2**17, "concentration": 1.0}
    report = simulate(small.scenario("automodel", {"dp_shard": 128, "ep": 128}, model="qwen3-30b-a3b", routing=routing))
    assert report.problems[0].message == (
        "expected at most 40,000,000 numbers to draw, got 805,306,368: 131,072 draws x ep 128 x 48 layers with experts "
        "(model) x 1 microbatches")


def test_placement_has_no_step() -> None:
    assert place(small.scenario("fsdp2", {"dp_shard": 8}, microbatches=2**20, model=deep(10_000))).status == "ok"


def test_microbatches_that_never_are_alike_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small.scenario("megatron", {"pp": 4}, microbatches=256, model=deep(16), pipeline={"virtual_stages": 2})
    free = simulate(asked)
    monkeypatch.setattr("simcore.timing.step._is_steady", lambda *_: False)
    monkeypatch.setattr(SIMULATION, "ROWS", 0)
    report = simulate(asked)
    found = [one for one in report.assumptions if one.what == "step_s"]
    assert [one.value for one in found] == ["236 of 256 microbatches taken to last as long as one of the 20 that were "
                                            "written out"]
    assert not [one for one in free.assumptions if one.what == "step_s"]


def test_a_depth_beyond_the_layers_changes_nothing() -> None:
    def of(depth: int) -> Report:
        report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, model="llama-3.1-8b", options={"prefetch": depth}))
        return report.model_copy(update={"scenario": {}})

    assert of(32) == of(10**12)
    assert of(31) != of(1)


def test_long_steps_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 8})
    simulate(asked)
    assert len(lowering._outline)
    monkeypatch.setattr(held, "BYTES", 0)
    simulate(asked)
    assert not len(lowering._outline)


# ---- and keeps the machine -------------------------------------------------------------------------------------------
EXTREMES = {
    "fsdp2": {"framework": "fsdp2", "model": deep(10_000), "mesh": {"dp_shard": 8}},
    "zero3": {"framework": "zero3", "model": deep(10_000), "mesh": {"dp_shard": 8}},
    "megatron": {"framework": "megatron", "model": deep(10_000), "mesh": {"dp_shard": 8},
                 "training": {"seq_len": 4096, "global_batch_size": 2**24}},
    "stages": {"framework": "megatron", "model": deep(128, "llama-3.1-405b"),
               "mesh": {"pp": 64, "tp": 8, "dp_shard": 256},
               "training": {"seq_len": 8192, "global_batch_size": 131072}},
    "ranks": {"framework": "fsdp2", "mesh": {"dp_shard": 2**20, "dp_replicate": 4}},
    "serve": {"workload": "serve", "generation": {"max_model_len": 131072, "max_num_seqs": 2**20, "max_loras": 2**16,
                                                  "max_num_batched_tokens": 2**26, "max_lora_rank": 512}},
    "grpo": {"workload": "grpo", "framework": "fsdp2", "mesh": {"dp_shard": 8},
             "rl": {"prompts": 2**20, "generations": 16}, "generation": {"max_model_len": 4096, "max_num_seqs": 1},
             "training": {"seq_len": 4096, "global_batch_size": 8}},
}


@pytest.mark.parametrize("asked", EXTREMES.values(), ids=EXTREMES)
def test_extremes_take_seconds_and_less_than_a_gib(asked: dict[str, Any], tmp_path: Path) -> None:
    """A process of its own, with the processor's time: other jobs may share the machine."""
    trains = {} if "generation" in asked and "rl" not in asked else {"training": {"seq_len": 512}}
    keys = {"name": "s", "model": "llama-3.1-8b", "topology": "dgx-h100", **trains, **asked}
    (tmp_path / "f.yaml").write_text(json.dumps(keys), encoding="utf-8")
    with subprocess.Popen([sys.executable, "-m", "simcore", "run", str(tmp_path / "f.yaml"), "--json"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60))) as process:  # noqa: PLW1509
        assert process.stderr is not None
        told = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 2), told
    assert "bug in rankscope" not in told
    assert used.ru_maxrss < 2**20
    assert used.ru_utime + used.ru_stime < 40
