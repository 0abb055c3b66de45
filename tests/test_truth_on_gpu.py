"""`tests/truth/on_gpu.sh` on a GPU that is not there: what it stores, in which order, and what it does without."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.document import Document
from simcore.inputs.loading import entry_of
from simcore.simulate import simulate
from simcore.validation.runs import read_measured

TRUTH = ROOT / "tests/truth"
ROOMS = ("makers", "tuners", "megatron_core")


@pytest.fixture(scope="module")
def cases() -> Any:
    sys.path.append(str(TRUTH))
    try:
        return importlib.import_module("on_gpu.cases").CASES
    finally:
        sys.path.remove(str(TRUTH))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages that the cases ask for, all but one; torch is `fake_torch`, and so is every maker."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "torch.py").write_text("from fake_torch import *\nfrom fake_torch import __version__, _Cuda\n")
    for name in ("transformers", "peft", "bitsandbytes", "mamba_ssm", "causal_conv1d"):
        (folder / f"{name}.py").touch()
    made = folder / "fake_makers"
    made.mkdir()
    (made / "__init__.py").touch()
    for room in ROOMS:
        (made / f"{room}.py").write_text("from fake_torch import made\ndef __getattr__(name): return made\n")
    return folder


def script(site: Path, into: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{site}{os.pathsep}{ROOT / 'tests'}"
    given = {"TRUTH": str(into), "PYTHON": sys.executable, "PYTHONPATH": path, "MAKERS": "fake_makers", **variables}
    return subprocess.run([str(TRUTH / "on_gpu.sh"), *words], env=os.environ | given, text=True,
                          capture_output=True, check=False, timeout=120)


@pytest.mark.slow
def test_steps_are_stored_as_rows_and_read_beside_the_engine(site: Path, tmp_path: Path) -> None:
    steps = "fsdp2-llama unsloth-llama ddp-llama"
    done = script(site, tmp_path, STEPS=steps, OUT_OF_MEMORY="none", FULL="99999")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unsloth-llama: left out, not installed: unsloth\n" in done.stdout
    rows, problems = read_measured([str(tmp_path)])
    assert problems == []
    found = {row.row.id: row for row in rows}
    llama = found["fsdp2-llama-NVIDIA-H200"]
    read = {reading.of: reading.bytes >> 30 for reading in llama.row.readings}
    assert read == {"allocated_peak": 10, "allocated_peak_first": 8, "allocated_end": 6, "reserved_peak": 11,
                    "device_peak": 11}
    assert llama.row.step_s == pytest.approx(0.35)
    assert llama.entry is not None
    assert "around one process" in str(found["ddp-llama-NVIDIA-H200"].row.not_modelled)
    assert (tmp_path / "calibration-quick.yaml").exists()
    for name in ("read-fsdp2-llama.pickle", "read-fsdp2-llama.trace.json.gz"):
        assert "beside fsdp2-llama, ranks 0" in (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    assert "on-gpu" in (tmp_path / "validate.log").read_text(encoding="utf-8")
    assert len(json.loads((tmp_path / "fsdp2-llama.json").read_text(encoding="utf-8"))["steps"]) == 9


def test_a_step_out_of_memory_is_a_row_too(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "on_gpu.step", "fsdp2-llama", "--into", str(tmp_path), "--makers", "fake_makers"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT / "tests", TRUTH))),
                          "OUT_OF_MEMORY": "fsdp2"}, text=True, capture_output=True, check=False)
    assert done.stdout == "fsdp2-llama: OOM\n", done.stderr
    (row,), _ = read_measured([str(tmp_path)])
    assert (row.row.verdict, row.row.readings, row.row.step_s) == ("oom", (), None)
    assert "Tried to allocate" in (tmp_path / "fsdp2-llama.oom.txt").read_text(encoding="utf-8")


def test_a_folder_of_data_is_no_package(tmp_path: Path) -> None:
    """`tests/truth/bitsandbytes` is one, beside `on_gpu`."""
    for name in ("torch", "transformers", "peft"):
        (tmp_path / f"{name}.py").touch()
    done = subprocess.run([sys.executable, "-m", "on_gpu.step", "qlora-llama", "--into", str(tmp_path)], text=True,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{TRUTH}"}, capture_output=True,
                          check=False)
    assert (done.returncode, done.stdout) == (3, "qlora-llama: left out, not installed: bitsandbytes\n")


def test_no_part_begins_when_the_time_is_over(site: Path, tmp_path: Path) -> None:
    done = script(site, tmp_path, "--minutes", "0", STEPS="fsdp2-llama")
    assert done.returncode == 0
    assert "fsdp2-llama: left out, no time is left" in done.stdout
    assert not list(tmp_path.glob("*.jsonl"))


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    done = script(tmp_path, tmp_path / "out")
    assert (done.returncode, done.stdout.partition(":")[0]) == (2, "torch is not installed")


def test_the_engine_reads_the_scenario_of_every_step(cases: Any) -> None:
    assert len(cases) == 13
    for small in (False, True):
        for case in cases.values():
            scenario = {"name": case.name, **case.scenario_on("dgx-h200", small=small)}
            entry = entry_of(Document("case.yaml", scenario, {(): 1}), [])
            assert not entry.problems


STORED = json.loads((TRUTH / "on_gpu/cpu-torch-2.13.0.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", STORED)
def test_makers_make_what_their_scenario_says(cases: Any, name: str) -> None:
    """Small models on a CPU, where cuBLAS has no workspace; 4-bit products and counters differ from a GPU's."""
    scenario = {"name": name, **cases[name].scenario_on("dgx-h200", small=True)}
    entry = entry_of(Document("case.yaml", scenario, {(): 1}), [])
    assert entry.scenario is not None
    rank = simulate(entry.scenario).ranks[0]
    assert rank.peak is not None
    workspace = rank.peak.by_category.get("workspace", 0)
    found = {"allocated_peak": rank.peak.allocated_bytes, "allocated_peak_first": rank.peak.first_step_bytes,
             "allocated_end": rank.end_bytes}
    for of, size in STORED[name].items():
        assert found[of] is not None
        assert (found[of] or 0) - workspace == pytest.approx(size, rel=0.003), of
