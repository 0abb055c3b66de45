"""Tensors of a class of ranks, as a table that opens."""

from __future__ import annotations

from simcore.results.detail import ClassDetail, TensorRow
from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.markup import Child, Markup, element
from viz.pages.tables import code, table

__all__ = ["tensor_table"]


def tensor_table(rank: RankReport, detail: ClassDetail, identity: str) -> Markup | None:
    """What rests on each of these ranks, tensor by tensor; layers that are alike share a row."""
    if not detail.tensors:
        return None
    columns = ("tensor", "in layers", "component", "dtype", "whole shape", "cut by", "layers", "elements here",
               "weights", "gradients", "optimizer")
    name = f"Tensors of ranks {', '.join(rank.ranks)}"
    shown = table(name, columns, [_row(one) for one in detail.tensors], 6)
    count = sum(one.num_layers for one in detail.tensors)
    head = element("summary", element("span", f"{name}: {count:,} tensors in {len(detail.tensors):,} rows"))
    return element("details", head, shown, class_="more tensors", id=identity)


def _row(one: TensorRow) -> list[Child]:
    shape = " \u00d7 ".join(f"{n:,}" for n in one.shape) or "1"
    copies = f"{one.copies:,} of " if one.copies > 1 else ""
    return [code(one.name), one.layers, one.component + (" (trained)" if one.trainable else ""), one.dtype,
            copies + shape, "; ".join(one.cut) or "nothing", f"{one.num_layers:,}", f"{one.num_elements:,}",
            *(format_bytes(n) if n else "\u2013" for n in (one.params_bytes, one.grads_bytes, one.optimizer_bytes))]
