"""Asks DeepSpeed's own estimators what model states need, of models that are built on the meta device.

Reads one case per line (JSON) from standard input: `preset` (a configuration of ours) or `config` (its fields), `gpus`
of a node, `nodes`. In the row: elements of the model and of its largest module; for each setting `[host, device]`
bytes, for ZeRO-3 with the model read under `zero.Init` and without.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from oracle.rows import placement_head
from oracle.worker import serve

PRESETS = Path(__file__).resolve().parents[2] / "simcore" / "models" / "presets"


def counted(fields: dict[str, Any]) -> tuple[int, int]:
    """Elements of all parameters, and of the module that has most itself (`model_to_params` reads no meta tensors)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    fields = dict(fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    own = (sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    return model.num_parameters(), max(own)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Every setting that the two functions know."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as of_3
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as of_2
    fields = case.get("config") or json.loads((PRESETS / f"{case['preset']}.json").read_text(encoding="utf-8"))
    total, largest = counted(fields)
    size = {"num_gpus_per_node": case["gpus"], "num_nodes": case["nodes"]}
    three = {"none": (False, False), "optimizer": (True, False), "both": (True, True)}
    return placement_head(case) | {
        "total": total, "largest": largest,
        "zero2": {name: of_2(total, cpu_offload=away, **size) for name, away in (("none", False), ("optimizer", True))},
        "zero3": {name: {inside: of_3(total, largest, cpu_offload=states, cpu_offload_params=params,
                                      zero_init=inside == "init", **size)[:2] for inside in ("init", "plain")}
                  for name, (states, params) in three.items()}}


def named(row: dict[str, Any]) -> dict[str, Any]:
    """A refusal is no row here."""
    assert "error" not in row, row["error"]
    return row


if __name__ == "__main__":
    serve(measure, named)
