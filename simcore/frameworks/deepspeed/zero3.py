"""DeepSpeed's ZeRO-3, 0.19.6, around Hugging Face models: see `simcore/placement/zero_words.py`."""

from __future__ import annotations

from simcore.frameworks.common.lora import name_adapters
from simcore.frameworks.deepspeed.table import IMPLEMENTATIONS, VERSIONS, zero_table
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["DEFAULT_IMPLEMENTATION", "IMPLEMENTATIONS", "PACKS", "VERSIONS", "adapters", "table"]

DEFAULT_IMPLEMENTATION = "hf"
PACKS = True
"""Serves frozen weights in 4 bits."""

adapters = name_adapters


def table(job: Job) -> Framework:
    """ZeRO-3 applied to a job."""
    return zero_table(job, 3)
