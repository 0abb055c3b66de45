"""FSDP2 and HSDP: torch's `fully_shard` around a model of transformers, whole steps on fake tensors.

Case: keys of `steps/defaults.py`; `model.fields`: all of a configuration.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from .steps.run import measure


def found(case: dict[str, Any]) -> dict[str, Any]:
    """Tensors, collectives of the last step in their order, and its highest bytes."""
    out = measure(case)
    counters = int(out["steps"][-1]["step"]["breakdown"].get("opt_state", 0)) - out["states_bytes"]
    return {"versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "tensors": out["tensors"], "calls": out["calls"],
            "sizes": {"peak": out["steps"][-1]["step"]["peak"] - counters}}  # counters lie in host memory beside a GPU
