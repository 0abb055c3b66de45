"""Scenario files of the best layouts of a search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from simcore.inputs.dump import yaml_text
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.found import FoundLayout, SearchResult
from simcore.units import format_bytes, format_seconds

__all__ = ["files_of"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def files_of(base: Scenario, result: SearchResult) -> Iterator[tuple[str, str]]:
    """(file name, YAML text) of each layout of the ranking, numbered from 1."""
    for place, one in enumerate(result.best, start=1):
        name = f"{base.name}-{place}"
        data = changed(base, {**one.keys, "name": name}).document.data
        yield f"{_UNSAFE.sub('-', name).strip('-')[:100]}.yaml", f"{_head(one)}{yaml_text(data)}"


def _head(one: FoundLayout) -> str:
    return (f"# {one.verdict}: peak {format_bytes(one.peak_bytes)}, step {format_seconds(one.step_s)}, "
            f"{one.tokens_per_s_per_gpu:,.0f} tokens/s per GPU on {one.num_gpus:,} GPUs\n")
