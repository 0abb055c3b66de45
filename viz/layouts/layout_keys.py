"""Keys in which the layouts of a search differ, and a name for each layout that has nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simcore.results.found import FoundLayout

__all__ = ["in_order", "layout_columns", "layout_names"]

_HEAD: Final = ("framework", "topology", "framework_version", "framework_options", "implementation",
                "topology.num_nodes")
"""Keys that have columns, or follow from those that have."""
_SHORT: Final = {"training.micro_batch_size": "micro batch"}


def layout_columns(layouts: Sequence[FoundLayout]) -> dict[str, list[str]]:
    """Returns the columns in which layouts differ, each with its texts in the order of the layouts.

    Framework, topology and GPUs first, then axes of the mesh, then other keys. Keys that only some have, such as memory
    options of a framework, are together in the column `options`.
    """
    common = [key for key in dict.fromkeys(key for one in layouts for key in one.keys)
              if key not in _HEAD and all(key in one.keys for one in layouts)]
    common.sort(key=lambda key: not key.startswith("mesh."))
    columns = {"framework": [one.framework for one in layouts], "topology": [one.topology for one in layouts],
               "GPUs": [str(one.num_gpus) for one in layouts]}
    for key in common:
        columns[_short(key)] = [_spelled(one.keys[key]) for one in layouts]
    columns["options"] = [", ".join(f"{_short(key)} {_spelled(value)}" for key, value in one.keys.items()
                                    if key not in _HEAD and key not in common) or "\u2013" for one in layouts]
    return {name: texts for name, texts in columns.items() if len(set(texts)) > 1}


def _short(key: str) -> str:
    return _SHORT.get(key, key.removeprefix("framework_options.").rpartition(".")[2])


def _spelled(value: Any) -> str:
    if value is None:
        return "\u2013"
    if isinstance(value, list | tuple):
        return "+".join(map(_spelled, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def layout_names(layouts: Sequence[FoundLayout]) -> list[str]:
    """Returns a name for each layout, such as "16 GPUs, dp_shard 16 ep 8, micro batch 2": degrees and what differs."""
    columns = layout_columns(layouts)
    degrees = {key.partition(".")[2] for one in layouts for key in one.keys if key.startswith("mesh.")}
    return [", ".join(_parts(one, n, columns, degrees)) for n, one in enumerate(layouts)]


def _parts(one: FoundLayout, n: int, columns: dict[str, list[str]], degrees: set[str]) -> list[str]:
    before = [columns[name][n] for name in ("framework", "topology") if name in columns]
    gpus = [f"{columns['GPUs'][n]} GPU{'s' * (one.num_gpus != 1)}"] if "GPUs" in columns else []
    skipped = {"framework", "topology", "GPUs", *degrees}
    others = [text if name == "options" else f"{name} {text}" for name, texts in columns.items()
              if name not in skipped and (text := texts[n]) != "\u2013"]
    return [*before, *gpus, one.layout, *others]


def in_order(value: str) -> tuple[int, float, str]:
    """Returns the key by which texts of numbers are sorted by value, and before words."""
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
