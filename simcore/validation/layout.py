"""Layouts of jobs as keys and values, and when two of them are equal.

[Note: layouts]
Two jobs have an equal layout if each tensor of a microbatch is on the same ranks, with the same size and dtype, for the
same part of the step. This is so if all keys of their scenarios are equal, after defaults of the framework are filled
in, except keys that say something else:

- `name`: a label.
- `topology`, `limits`, `environment`, `checkpoint`: the machine, and how the job uses its memory and disks. A run on
  other GPUs is told with its machine.
- `training.global_batch_size`, `training.num_tokens`: the number of microbatches and of steps.
- `training.routing`: the data, on average.
- `model`: its configuration decides, not the name or path under which it is found.
- `training.lora` in full fine-tuning: it has no effect.

Versions are equal up to the last part of a number such as 0.7.0, because patch releases keep rules. Of the other keys,
those in `SIZES` size tensors and do not place them: a recipe may be run with any of their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.frameworks.setup import configuration
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["SIZES", "VERSION", "job_layout"]

VERSION: Final = "framework_version"
SIZES: Final = frozenset({
    "training.seq_len", "training.micro_batch_size", "training.lengths", "training.packed_length",
    "training.lora.rank", "training.lora.alpha"})
"""Keys that size tensors and do not place them."""

_OTHER: Final = frozenset({"name", "model", "topology", "limits", "environment", "checkpoint",
                           "training.global_batch_size", "training.num_tokens", "training.routing"})
"""Keys and blocks that are no part of a layout, each with its reason in [Note: layouts]."""


def job_layout(job: Job, framework: Framework) -> dict[str, str]:
    """Layout of a job: dotted key -> value as text, with the framework's defaults, see [Note: layouts].

    Two jobs have an equal layout if and only if these are equal.
    """
    idle = {"training.lora"} if job.scenario.training.method == "full" else set()
    found = dict(_flat(job.scenario.normalised(), "", _OTHER | idle))
    for key, value, _ in framework.defaults:
        if found.get(key, "null") in ("null", "auto") and key.split(".")[0] not in _OTHER:
            found[key] = _text(value)
    return found | {"model": _text(dict(configuration(job.scenario))), "mesh.etp": str(job.mesh.etp),
                    "implementation": job.graph.implementation,
                    VERSION: re.sub(r"(\d+\.\d+)\.\d+", r"\1", framework.version)}


def _flat(values: Mapping[str, Any], prefix: str, left_out: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields each value of nested maps with its dotted key; an empty map has none."""
    for name, value in values.items():
        key = prefix + name
        if key in left_out:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.", left_out)
        else:
            yield key, _text(value)


_WORDS: Final = {None: "null", True: "true", False: "false"}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or value is True or value is False:  # most values, in every answer
        return _WORDS[value]
    return json.dumps(value, sort_keys=True)
