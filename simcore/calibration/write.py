"""An efficiency file from what was measured; the rest is taken over from the file that the topology names now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from simcore.calibration.reading import Value
from simcore.efficiency import Efficiency
from simcore.quantity import Quantity

__all__ = ["efficiency_text", "taken_over"]


def efficiency_text(name: str, base: Efficiency, found: Mapping[str, Value], reasons: Mapping[str, str],
                    told: str) -> str:
    """The text of an efficiency file called `name`, measured on the machine that `told` names.

    `found`: values by dotted key, such as `kernels.gemm.compute`; a key that `base` lacks is written too. `reasons`: by
    the beginning of a key, why what stands below it was not measured.
    """
    values = {key: taken_over(base.name, quantity, _reason(key, reasons)) for key, quantity in _quantities(base)}
    tree = CommentedMap({"name": name})
    for key, value in (values | dict(found)).items():
        _put(tree, key.split("."), value)
    return _text(tree, f"What kernels reach, measured by `rankscope calibrate`: {told}.")


def taken_over(name: str, quantity: Quantity, reason: str) -> Value:
    """A quantity of the file `name` that was not measured here: it is assumed, and says where it comes from and why."""
    return Value(quantity.value, "assumed", f"taken over from {name}: {quantity.source} ({reason})")


def _reason(key: str, reasons: Mapping[str, str]) -> str:
    return next((reason for start, reason in reasons.items() if f"{key}.".startswith(f"{start}.")), "not measured")


def _quantities(part: BaseModel, path: str = "") -> Iterator[tuple[str, Quantity]]:
    """Every quantity of a part of a file, by its dotted key as files spell it."""
    for field, info in type(part).model_fields.items():
        value, key = getattr(part, field), f"{path}{info.alias or field}"
        if isinstance(value, Quantity):
            yield key, value
        elif isinstance(value, BaseModel):
            yield from _quantities(value, f"{key}.")


def _put(tree: CommentedMap, path: list[str], value: Value) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, CommentedMap())
    leaf = CommentedMap(value=value.value, kind=value.kind, source=value.source)
    leaf.fa.set_flow_style()
    tree[path[-1]] = leaf


def _text(tree: Any, comment: str) -> str:
    yaml, out = YAML(), StringIO()
    yaml.width = 1 << 16  # a value and its source on one line
    tree.yaml_set_start_comment(comment)
    yaml.dump(tree, out)
    return out.getvalue()
