"""DeepSpeed's ZeRO-3, 0.19.6, around Hugging Face models: see `simcore/zero.py`."""

from __future__ import annotations

from simcore.framework import Framework
from simcore.frameworks._deepspeed import IMPLEMENTATIONS, VERSIONS, zero_table
from simcore.job import Job
from simcore.lora_names import name_adapters

__all__ = ["DEFAULT_IMPLEMENTATION", "IMPLEMENTATIONS", "PACKS", "VERSIONS", "adapters", "table"]

DEFAULT_IMPLEMENTATION = "hf"
PACKS = True
"""Serves frozen weights in 4 bits."""

adapters = name_adapters


def table(job: Job) -> Framework:
    """ZeRO-3 applied to a job."""
    return zero_table(job, 3)
