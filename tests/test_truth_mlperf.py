"""Scenarios of MLPerf results: every word of a result is known, or it is refused; layouts that are kept out of fits."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simcore.inputs.shipped import data_folder

TRUTH = Path(__file__).resolve().parent / "truth"
RESULT: dict[str, Any] = {
    "id": "a-result", "source": "somewhere", "config_group": "llama2_70b_lora/B200/1/1/1/1/None/1/fp8",
    "model": "Llama-2-70B", "gpus": 8, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "dp": 8, "dp_shard": 8, "ep": None,
    "etp": None, "seq_len": 8192, "micro_batch": 1, "global_batch": 8, "complete": True, "recompute": "none",
    "precision": "fp8 delayed linear, fp8 attention, fp8 frozen weights, bf16 activations",
    "peft": {"rank": 16, "alpha": 32, "dropout": 0.1, "targets": ["linear_qkv", "linear_proj"]},
    "measured": {"peak_alloc_gib": 168.827, "step_time_s": 1.5},
    "config": {"round": "v5.0", "benchmark": "llama2_70b_lora", "gpu_class": "B200", "config_path": "a/file.sh",
               "cuda_graph": "none", "fp8_dpa": "1", "fp8_activation_input_store": "1", "sequence_parallel": False,
               "tp_comm_overlap": False, "use_te_ops": None},
}


@pytest.fixture(scope="module")
def mlperf() -> ModuleType:
    """`truth/measured_mlperf.py`, which stands beside the other converters and not in a package."""
    sys.path.insert(0, str(TRUTH))
    try:
        return importlib.import_module("measured_mlperf")
    finally:
        sys.path.remove(str(TRUTH))


def changed(key: str, value: object, **config: object) -> dict[str, Any]:
    made = copy.deepcopy(RESULT)
    if key:
        made[key] = value
    made["config"] |= config
    return made


def test_a_result_says_all_that_its_files_do(mlperf: ModuleType) -> None:
    row = mlperf.row(RESULT)
    assert row["readings"] == [{"of": "allocated_peak", "rank": 0, "bytes": round(168.827 * 2**30)}]
    assert (row["verdict"], row["release"], row["group"]) == ("fits", "v5.0", "mlperf-llama2-70b-lora")
    assert row["scenario"]["framework_options"] == {
        "fp8_recipe": "delayed", "fp8_dot_product_attention": True, "fp8_param_gather": True,
        "overlap_grad_reduce": False, "overlap_param_gather": False, "cross_entropy_loss_fusion": False,
        "activation_func_fp8_input_store": True}
    head = mlperf.row(changed("precision", f"{RESULT['precision']}, mxfp8 LM head"))
    assert head["scenario"]["framework_options"]["fp8_output_proj"] is True


@pytest.mark.parametrize(("key", "value"), [
    ("precision", "fp6 linear, bf16 activations"), ("recompute", "some"), ("model", "Llama-4")])
def test_an_unknown_word_is_no_default(mlperf: ModuleType, key: str, value: str) -> None:
    with pytest.raises(KeyError):
        mlperf.row(changed(key, value))


@pytest.mark.parametrize(("key", "value"), [
    ("gpu_class", "B400"), ("cuda_graph", "half"), ("fp8_activation_input_store", "maybe"), ("benchmark", "t5"),
    ("fp8_dpa", "0")])
def test_an_unknown_or_contradicting_setting_is_no_default(mlperf: ModuleType, key: str, value: str) -> None:
    with pytest.raises(KeyError):
        mlperf.row(changed("", None, **{key: value}))


@pytest.mark.parametrize(("run", "reason"), [
    (changed("complete", False), "configuration not recovered"),
    (changed("", None, same_logs_as="another"), "handed in again"),
    (changed("precision", "mxfp4 linear (hadamard), bf16 attention"), "linears in mxfp4"),
    (changed("dp", 4), "the degrees make 4 ranks")])
def test_a_result_without_a_scenario_says_why(mlperf: ModuleType, run: dict[str, Any], reason: str) -> None:
    row = mlperf.row(run)
    assert "scenario" not in row
    assert reason in row["not_modelled"]


def test_equal_layouts_are_on_one_side_of_every_fit() -> None:
    """A scenario but for its batch and number of ranks: a third of them, and of the rows, is kept out."""
    sides: dict[str, set[bool]] = {}
    rows = [json.loads(line) for file in sorted(data_folder("measured").glob("mlperf-*.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if asked := row.get("scenario"):
            mesh = {axis: size for axis, size in asked["mesh"].items() if axis != "dp_shard"}
            topology = asked["topology"] if isinstance(asked["topology"], str) else asked["topology"]["file"]
            layout = json.dumps([asked["model"], topology, mesh, asked["training"]["micro_batch_size"],
                                 asked["training"]["precision"]["compute"]], sort_keys=True)
            sides.setdefault(layout, set()).add(row.get("kept_out", False))
    assert all(len(found) == 1 for found in sides.values())
    assert sum(row.get("kept_out", False) for row in rows) == pytest.approx(len(rows) / 3, abs=5)
