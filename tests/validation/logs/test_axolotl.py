"""Log of axolotl: memory in its metrics, under the names of both versions."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import GIB
from training_logs import AXOLOTL, read, values


def test_memory_and_trained_tokens() -> None:
    log = read(AXOLOTL)
    assert log.trainer == "axolotl"
    assert values(log, 0) == {"allocated_peak": 22.25 * GIB, "reserved_peak": 25.5 * GIB}
    assert values(log) == {"trained_tokens_per_s_per_gpu": 1000}


def test_names_of_2025() -> None:
    log = read("{'loss': 1.2, 'memory/max_mem_active(gib)': 3.1, 'memory/max_mem_allocated(gib)': 3.0, "
               "'memory/device_mem_reserved(gib)': 4.5, 'epoch': 0.1}")
    assert values(log, 0) == {"allocated_peak": 3 * GIB, "reserved_peak": pytest.approx(4.5 * GIB)}
