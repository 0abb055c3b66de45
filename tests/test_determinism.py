"""The same question twice has the same answer, byte for byte, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import small
from checkout import ROOT
from simcore.simulate import simulate

MESHES = {"fsdp2": {"dp_shard": 3}, "automodel": {"dp_shard": 4, "ep": 2}, "megatron": {"dp_shard": 3, "tp": 2},
          "megatron_fsdp": {"dp_shard": 3, "tp": 2}}


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_the_same_report_twice(name: str) -> None:
    asked = small.scenario(name, MESHES[name], microbatches=2)
    assert simulate(asked, series=True).model_dump_json() == simulate(asked, series=True).model_dump_json()


def test_the_same_reports_under_another_hash_seed() -> None:
    """That of this process is drawn."""
    here = reports()
    assert here.count('"status":"ok"') == len(MESHES) + 3 + 1
    for seed in ("1", "2"):
        assert _output("import test_determinism; print(test_determinism.reports())", seed) == f"{here}\n", seed


def reports() -> str:
    """Reports of every framework and method, a line each."""
    asked = [small.scenario(name, mesh, microbatches=2) for name, mesh in MESHES.items()]
    adapted = [small.scenario(name, MESHES[name], method="lora") for name in ("fsdp2", "automodel", "megatron")]
    drawn = small.scenario("automodel", MESHES["automodel"], routing={"seed": 3, "draws": 20},
                           lengths={"mean": 32, "max": 64})
    return "\n".join([*(simulate(one, series=True).model_dump_json() for one in asked),
                      *(simulate(one).model_dump_json() for one in adapted),
                      simulate(drawn, timed=False).model_dump_json()])


def _output(script: str, seed: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True,
                          check=True).stdout
