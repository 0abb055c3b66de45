"""Scenarios of small models that read images, as the stored steps of sharded models ran them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simcore.inputs.scenario import Scenario

__all__ = ["scenario_of"]


def scenario_of(name: str, case: dict[str, Any], folder: Path, framework: str, options: dict[str, Any],
                ranks: int = 8) -> Scenario:
    """The scenario of a case over `ranks`, stored and reduced in fp32; its configuration is written into `folder`."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(case["fields"]), encoding="utf-8")
    height, width = case["sides"]
    return Scenario.model_validate({
        "name": "sees", "model": {"config": str(path)}, "framework": framework, "topology": "dgx-h100",
        "mesh": {"dp_shard": ranks}, "framework_options": {"attn_implementation": "sdpa"} | options,
        "training": {"seq_len": case["seq"], "micro_batch_size": case["batch"], "images": case["images"],
                     "image_height": height, "image_width": width, "frozen": case["frozen"],
                     "recompute": "full" if case["recompute"] else "none",
                     "precision": {"params": "fp32", "grad_reduce": "fp32"}}})
