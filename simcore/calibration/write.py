"""The files that a calibration is written to: an efficiency file, and a copy of the topology that names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from simcore.calibration.reading import Value
from simcore.efficiency import Efficiency
from simcore.quantity import Quantity
from simcore.topology import Topology

__all__ = ["efficiency_text", "topology_text"]


def efficiency_text(name: str, base: Efficiency, found: Mapping[str, Value], reasons: Mapping[str, str],
                    told: str) -> str:
    """The text of an efficiency file called `name`, measured on the machine that `told` names.

    `found`: values by dotted key, such as `kernels.gemm.compute`; a key that `base` lacks is written too. What was not
    measured is taken over from `base`: it is assumed, its source says so. `reasons`: why, by the
    beginning of a key.
    """
    values: dict[str, Value | str] = {"name": name}
    for key, old in _leaves(base):
        if isinstance(old, Quantity):
            source = f"taken over from {base.name}: {old.source} ({_reason(key, reasons)})"
            values[key] = Value(old.value, "assumed", source)
    return _text(values | dict(found), f"What kernels reach, measured by `rankscope calibrate`: {told}.")


def topology_text(name: str, base: Topology, efficiency: str, found: Mapping[str, Value], told: str) -> str:
    """The text of a topology file called `name`: `base` with what was measured, naming an efficiency file.

    What was not measured stays as `base` has it, with its own kind and source.
    """
    values: dict[str, Value | str | int] = {}
    for key, old in _leaves(base):
        values[key] = Value(old.value, old.kind, old.source) if isinstance(old, Quantity) else old
    values |= {"name": name, "efficiency": efficiency, **found}
    return _text(values, f"{base.name}, with what `rankscope calibrate` measured of it: {told}.")


def _reason(key: str, reasons: Mapping[str, str]) -> str:
    return next((reason for start, reason in reasons.items() if f"{key}.".startswith(f"{start}.")), "not measured")


def _leaves(part: BaseModel, path: str = "") -> Iterator[tuple[str, Quantity | str | int]]:
    """Everything in a part of a file, by its dotted key as files spell it; of an efficiency in a topology its name."""
    for field, info in type(part).model_fields.items():
        value, key = getattr(part, field), f"{path}{info.alias or field}"
        if isinstance(value, Quantity | str | int):
            yield key, value
        elif isinstance(value, Efficiency):
            yield key, value.name
        elif isinstance(value, BaseModel):
            yield from _leaves(value, f"{key}.")


def _text(values: Mapping[str, Value | str | int], comment: str) -> str:
    tree = CommentedMap()
    for key, value in values.items():
        _put(tree, key.split("."), value)
    yaml, out = YAML(), StringIO()
    yaml.width = 1 << 16  # a value and its source on one line
    tree.yaml_set_start_comment(comment)
    yaml.dump(tree, out)
    return out.getvalue()


def _put(tree: CommentedMap, path: list[str], value: Value | str | int) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, CommentedMap())
    if isinstance(value, Value):
        leaf = CommentedMap(value=value.value, kind=value.kind, source=value.source)
        leaf.fa.set_flow_style()
        tree[path[-1]] = leaf
    else:
        tree[path[-1]] = value
