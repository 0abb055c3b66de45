"""Log lines of axolotl: a Trainer of transformers that adds memory and tokens a second to its metrics.

[Note: metrics of axolotl]
axolotl 0.18.0 (067b021c) `core/trainers/base.py`, `log`, of rank 0: `memory/max_allocated (GiB)` and
`memory/device_reserved (GiB)` are `max_memory_allocated` and `max_memory_reserved` since the metrics before, in units
of 1024**3 bytes (`utils/bench.py`); until 2025 they were `memory/max_mem_allocated(gib)` and
`memory/device_mem_reserved(gib)`. `tokens/train_per_sec_per_gpu` counts tokens that have a loss, so it is compared with
the simulated rate only if all of them have one, which a log does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.validation.logs import hf_trainer
from simcore.validation.logs.reading import GIB, Log, highest, steady

__all__ = ["WORDS", "read"]

WORDS: Final = hf_trainer.WORDS
"""Words of which a line of this format has one."""
_MEMORY: Final = {"allocated_peak": ("memory/max_allocated (GiB)", "memory/max_mem_allocated(gib)"),
                  "reserved_peak": ("memory/device_reserved (GiB)", "memory/device_mem_reserved(gib)")}
_RATE: Final = "tokens/train_per_sec_per_gpu"


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of axolotl; None if no line has memory under its names."""
    found = list(hf_trainer.metrics(lines))
    note = "the highest of {} lines, rank 0"
    more = []
    for of, names in _MEMORY.items():
        values = [(None, one[name] * GIB) for one in found for name in names if name in one]
        more += highest(of, values, 0, note.format(len(values)))
    if not more:
        return None
    more += steady("trained_tokens_per_s_per_gpu", [one[_RATE] for one in found if _RATE in one])
    return hf_trainer.of_trainer("axolotl", lines, found, more)
