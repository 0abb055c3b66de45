"""Long tables of a class of ranks, folded until they are opened: tensors at rest, owners at the peak."""

from __future__ import annotations

from typing import Final

from simcore.results.detail import ClassDetail, TensorRow
from simcore.results.report import RankReport
from simcore.units import format_bytes
from viz.markup import Child, Markup, element
from viz.pages.tables import code, table

__all__ = ["peak_owner_table", "tensor_table"]

_MOST: Final = 400  # rows of owners


def tensor_table(rank: RankReport, detail: ClassDetail, identity: str) -> Markup | None:
    """Returns an HTML table, folded, of all tensors at rest on a rank of this class: shape, sharding axes, bytes.

    Equal tensors of several layers share a row, with the bytes of all of them. None without tensors. `identity`: its
    id, unique on the page.
    """
    if not detail.tensors:
        return None
    columns = ("tensor", "in layers", "component", "dtype", "whole shape", "cut by", "layers", "elements here",
               "weights", "gradients", "optimizer")
    name = f"Tensors of ranks {', '.join(rank.ranks)}"
    rows = table(name, columns, [_row(tensor) for tensor in detail.tensors], 6)
    count = sum(tensor.num_layers for tensor in detail.tensors)
    head = element("summary", element("span", f"{name}: {count:,} tensors in {len(detail.tensors):,} rows"))
    return element("details", head, rows, class_="more tensors", id=identity)


def _row(tensor: TensorRow) -> list[Child]:
    shape = " \u00d7 ".join(f"{n:,}" for n in tensor.shape) or "1"
    copies = f"{tensor.copies:,} of " if tensor.copies > 1 else ""
    component = tensor.component + (" (trained)" if tensor.trainable else "")
    sizes = (tensor.params_bytes, tensor.grads_bytes, tensor.optimizer_bytes)
    return [code(tensor.name), tensor.layers, component, tensor.dtype, copies + shape,
            "; ".join(tensor.cut) or "nothing", f"{tensor.num_layers:,}", f"{tensor.num_elements:,}",
            *(format_bytes(size) if size else "\u2013" for size in sizes)]


def peak_owner_table(detail: ClassDetail) -> Markup | None:
    """Returns an HTML table, folded, of owners (tensor and layers) of memory at the peak, at most 400 of them.

    None without owners.
    """
    if not detail.holders:
        return None
    rows = [[code(holder.owner), holder.layers, holder.category, f"{holder.num_layers:,}", format_bytes(holder.bytes)]
            for holder in detail.holders[:_MOST]]
    owners = table("Owners at the peak", ("tensor", "in layers", "category", "layers", "bytes"), rows, 3)
    return element("details", element("summary", f"All {len(detail.holders):,} owners at the peak"), owners,
                   class_="more")
