"""The README shows real output, real errors and what is really supported.

`python tests/test_readme.py --write` makes its output, its table of errors and its picture again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from checkout import ROOT
from measured_memory import compared_memory
from simcore.frameworks.registry import known_frameworks
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.shipped import data_folder
from simcore.simulate import check, simulate
from simcore.validation.tolerance import Judged
from viz.exports.figures import figures

FILE = ROOT / "README.md"
README = FILE.read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "first-scenario.svg"
WRITE = "run: python tests/test_readme.py --write"
MAX_LINES, MAX_COLUMNS = 120, 100
WIDTH, SHOWN = 100, 15
"""Columns of the terminal whose output is shown, and the first lines that are."""
MACHINES: Final = ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72")
MEMORY: Final = {
    "peak allocated memory, Megatron": "Megatron, allocated_peak: median error",
    "peak allocated memory, FSDP2 and Automodel": "FSDP2 family, allocated_peak: median error",
    "peak reserved memory": "reserved_peak: median error of the middle",
}
AXES: Final = ("TP", "CP", "PP", "EP")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def first() -> Scenario:
    return parse_scenario(parse_document(block("yaml"), "README.md"))


# ---- output and picture ----------------------------------------------------------------------------------------------
@cache
def output() -> str:
    """The first lines that `rankscope run first.yaml` prints in a terminal of that width."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "first.yaml").write_text(block("yaml"), encoding="utf-8")
        environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
        ended = subprocess.run([sys.executable, "-m", "simcore", "run", "first.yaml"], cwd=folder, env=environment,
                               capture_output=True, encoding="utf-8", check=True)
    return "".join(f"{line.rstrip()}\n" for line in ended.stdout.splitlines()[:SHOWN]).rstrip("\n") + "\n"


def picture() -> str:
    """Memory over the step, as `rankscope report first.yaml --figures` draws it."""
    drawn = dict(figures([simulate(first(), detail=True)]))
    return drawn["01-llama-8b-memory-0"]


def test_the_output_shown_is_what_the_command_prints() -> None:
    assert block("text") == output(), WRITE


def test_the_picture_is_what_the_command_draws() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), WRITE


# ---- errors ----------------------------------------------------------------------------------------------------------
def time_rows() -> list[str]:
    """Errors of step time, by machine: with its rows in the fit of constants, and without."""
    stored: dict[str, dict[str, dict[str, float]]] = json.loads(
        (data_folder("measured") / "left_out.json").read_text(encoding="utf-8"))
    errors = {name: stored["gpu"][name] for name in MACHINES}
    return [f"| step time, {name} | {e['configurations']} | {e['fitted_median']:.1%} | {e['median']:.1%} |"
            for name, e in errors.items()]


def memory_rows() -> list[str]:
    """Errors of memory. Nothing is fitted to peaks; what the allocator reserves is calibrated."""
    found = compared_memory()
    judged: dict[str, Judged] = {one.what: one for one in found.judged}
    device = [abs(one.error) for one in found.compared if one.quantity == "device_peak"]
    return [*(f"| {name} | {judged[what].num} | {judged[what].found:.1%} | |" for name, what in MEMORY.items()),
            f"| peak device memory | {len(device)} | {median(device):.1%} | |"]


def table(head: str) -> list[str]:
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head)) + 2
    rest = lines[start:]
    return rest[: next(number for number, line in enumerate(rest) if not line.startswith("|"))]


def test_errors_of_step_time_are_those_of_the_fit() -> None:
    assert [row for row in table("| quantity |") if "step time" in row] == time_rows(), WRITE


@pytest.mark.slow
def test_errors_of_memory_are_those_of_validate() -> None:
    assert [row for row in table("| quantity |") if "memory" in row] == memory_rows(), WRITE


# ---- what is supported -----------------------------------------------------------------------------------------------
def supported() -> dict[str, tuple[str, str]]:
    """Framework -> (methods, axes beside data parallelism), as the table says of its default implementation."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table("| framework |")]
    return {name: (methods, axes.partition(";")[0]) for names, methods, axes in cells
            for name in re.findall(r"`(\w+)`", names)}


def is_legal(framework: str, mesh: dict[str, int], **asked: Any) -> bool:
    training = {"seq_len": 128, "global_batch_size": 64, **asked.pop("training", {})}
    data = {"name": "x", "model": "llama-3.1-8b", "framework": framework, "topology": "dgx-h100", "mesh": mesh,
            "training": training, **asked}
    return check(parse_scenario(parse_document(json.dumps(data), "x"))).status == "ok"


def test_every_framework_is_in_the_table() -> None:
    assert sorted(supported()) == sorted(known_frameworks())


@pytest.mark.parametrize("framework", known_frameworks())
def test_methods_of_a_framework_are_those_of_the_table(framework: str) -> None:
    mesh = {"dp_replicate": 4} if framework in ("ddp", "zero0") else {"dp_shard": 4}
    options: dict[str, Any] = {"use_orig_params": True} if framework == "fsdp1" else {}
    asked: dict[str, dict[str, Any]] = {name: {"training": {"method": name.lower()}, "framework_options": options}
                                        for name in ("full", "LoRA", "QLoRA")}
    if framework == "fsdp1":  # flat parameters hold packed weights only as what they compute in
        asked["QLoRA"] = {"training": {"method": "qlora", "precision": {"params": "bf16"}},
                          "framework_options": {**options, "bnb_4bit_quant_storage": "bfloat16"}}
    served = [name for name, keys in asked.items() if is_legal(framework, mesh, **keys)]
    assert ", ".join(served) == supported()[framework][0]


@pytest.mark.parametrize("framework", known_frameworks())
def test_axes_of_a_framework_are_those_of_the_table(framework: str) -> None:
    data = "dp_replicate" if framework in ("ddp", "zero0") else "dp_shard"
    dense = [axis for axis in AXES[:3] if is_legal(framework, {data: 2, axis.lower(): 2})]
    experts = ["EP"] if is_legal(framework, {data: 4, "ep": 2}, model="qwen3-30b-a3b") else []
    assert ", ".join([*dense, *experts]) == supported()[framework][1]


@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_torchtitans_layers_have_the_axes_of_the_table(axis: str) -> None:
    assert is_legal("fsdp2", {"dp_shard": 2, axis: 2}, implementation="torchtitan")


# ---- its form --------------------------------------------------------------------------------------------------------
def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def test_every_command_that_it_names_exists(ran: Any) -> None:
    named = {*re.findall(r"`rankscope (\w+)", README)}
    told = ran("--help").out
    assert [name for name in named if f"\n  {name} " not in told] == []


def _write() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    text = README.replace(f"```text\n{block('text')}```", f"```text\n{output()}```")
    head, separator, rest = text.partition("| quantity |")
    line, rule, *others = rest.split("\n")
    others = others[next(number for number, one in enumerate(others) if not one.startswith("|")):]
    FILE.write_text("\n".join([head + separator + line, rule, *memory_rows(), *time_rows(), *others]), encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    _write()
