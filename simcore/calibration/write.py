"""Files of a calibration: an efficiency file, a copy of the topology that names it, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import LiteralScalarString

from simcore.calibration.ranks import Point
from simcore.calibration.reading import Value
from simcore.hardware.collective_curves import curve_names, find_curves
from simcore.hardware.efficiency import Efficiency
from simcore.hardware.topology import Topology
from simcore.inputs.quantity import Quantity

__all__ = ["curves_text", "efficiency_text", "topology_text"]

_TABLED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Collectives that a file of curves has (`simcore.hardware.collective_curves`)."""

Leaf = Mapping[str, str] | str | int
"""A quantity as files have it (value, kind, source), or a plain value."""


def efficiency_text(name: str, base: Efficiency, found: Mapping[str, Value], reasons: Mapping[str, str],
                    told: str) -> str:
    """YAML text of an efficiency file called `name`, measured on the machine that `told` describes.

    `found`: values by dotted key, such as `kernels.gemm.compute`; a key that `base` lacks is written too. Values that
    were not measured are taken over from `base` as assumed; their source gives the reason. `reasons`: these reasons, by
    a key or by the first parts of several keys; the first that matches counts.
    """
    values: dict[str, Leaf] = {"name": name}
    for key, old in _leaves(base):
        if isinstance(old, Quantity):
            source = f"taken over from {base.name}: {old.source} ({_reason(key, reasons)})"
            values[key] = {"value": old.value, "kind": "assumed", "source": source}
    return _text(values | _plain(found), f"What kernels reach, measured by `rankscope calibrate`: {told}.")


def topology_text(name: str, base: Topology, efficiency: str, curves: str, found: Mapping[str, Value],
                  told: str) -> str:
    """YAML text of a topology file called `name`: `base` with the measured values `found`, by dotted key.

    `efficiency`, `curves`: paths of the files that it names; without `curves` ("") it keeps those of `base`. Values
    that were not measured stay as in `base`, with their kind and source. `told`: description of the machine.
    """
    values: dict[str, Leaf] = {}
    for key, old in _leaves(base):
        values[key] = old.model_dump() if isinstance(old, Quantity) else old
        if key.endswith(".curves"):
            values[key] = _named(str(old))
    values |= {"name": name, "efficiency": efficiency, **_plain(found)}
    if curves:
        values[f"node.{'nvlink' if base.node.nvlink else 'pcie'}.curves"] = curves
    return _text(values, f"{base.name}, with what `rankscope calibrate` measured of it: {told}.")


def _named(path: str) -> str:
    """Name of shipped curves, else their path."""
    name = Path(path).stem
    return name if name in curve_names() and find_curves(name) == Path(path) else str(Path(path).resolve())


def curves_text(points: Sequence[Point], machine: str, library: str, told: str) -> str:
    """YAML text of a file of collective curves: microseconds by payload in bytes and number of ranks.

    One table each for all-gather, reduce-scatter, all-reduce and all-to-all. Format:
    `simcore.hardware.collective_curves`. `machine`: name of the GPU; `library`: version of NCCL or of its replacement;
    `told`: description of the machine, for the source.
    """
    tables = {f"curves.{name}": LiteralScalarString(_table([p for p in points if p.collective == name]))
              for name in _TABLED}
    head = {"machine": machine, "nccl": library, "source": f"rankscope calibrate: {told}"}
    return _text(head | tables, "Microseconds by bytes (rows) and ranks (columns).")


def _table(points: Sequence[Point]) -> str:
    times = {(point.payload, point.ranks): point.seconds for point in points}
    ranks, sizes = (sorted({key[i] for key in times}) for i in (1, 0))
    lines = [["bytes", *map(str, ranks)]]
    lines += [[str(size), *(f"{1e6 * times[size, n]:.6g}" for n in ranks)] for size in sizes]
    return "".join(" ".join(cell.rjust(10) for cell in line).strip() + "\n" for line in lines)


def _plain(found: Mapping[str, Value]) -> dict[str, Leaf]:
    return {key: {"value": measured.value, "kind": measured.kind, "source": measured.source} for key,
            measured in found.items()}


def _reason(key: str, reasons: Mapping[str, str]) -> str:
    return next((reason for start, reason in reasons.items() if f"{key}.".startswith(f"{start}.")), "not measured")


def _leaves(part: BaseModel, path: str = "") -> Iterator[tuple[str, Quantity | str | int]]:
    """All values of a part of a file, by dotted key as in files; of an efficiency in a topology its name."""
    for field, info in type(part).model_fields.items():
        value, key = getattr(part, field), f"{path}{info.alias or field}"
        if isinstance(value, Quantity | str | int):
            yield key, value
        elif isinstance(value, Efficiency):
            yield key, value.name
        elif isinstance(value, BaseModel):
            yield from _leaves(value, f"{key}.")


def _text(values: Mapping[str, Leaf], comment: str) -> str:
    tree = CommentedMap()
    for key, value in values.items():
        _put(tree, key.split("."), value)
    yaml, out = YAML(), StringIO()
    yaml.width = 1 << 16  # a value and its source on one line
    tree.yaml_set_start_comment(comment)
    yaml.dump(tree, out)
    return out.getvalue()


def _put(tree: CommentedMap, path: list[str], value: Leaf) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, CommentedMap())
    if isinstance(value, Mapping):
        leaf = CommentedMap(value)
        leaf.fa.set_flow_style()
        tree[path[-1]] = leaf
    else:
        tree[path[-1]] = value
