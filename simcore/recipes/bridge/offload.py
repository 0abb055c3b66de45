"""Activations on the host in Megatron-Bridge's configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader

__all__ = ["read_offload", "wanted_offload"]

_KEY: Final = "training.offload.activations"
_LAYERS: Final = "cpu_offloading_num_layers"
_IGNORED: Final = ("cpu_offloading_weights", "cpu_offloading_double_buffering")


def read_offload(reader: Reader, draft: Draft) -> None:
    """Writes which layers' saved tensors wait on the host."""
    asked, count = reader.flag("model.cpu_offloading"), reader.integer(f"model.{_LAYERS}")
    kept = reader.flag("model.cpu_offloading_activations")
    draft.idle([one for name in _IGNORED if (one := reader.flag(f"model.{name}"))],
               "TransformerEngine ignores it (pytorch/cpu_offload.py: deprecated)")
    draft.idle(reader.flag("model.cpu_offloading_retain_pinned_cpu_buffers"), "the peak has the same pinned buffers")
    if asked is None or not asked.value or count is None or not count.value:
        draft.idle([one for one in (asked, count, kept) if one], "no layer's activations leave")
        return
    if kept is not None and not kept.value:
        draft.refuse(kept, "offload of layers without their activations")
        draft.use(asked, count)
        return
    draft.put(_KEY, asked, "host")
    draft.use(kept)
    draft.put(f"framework_options.{_LAYERS}", count)


def wanted_offload(outline: Outline) -> Iterator[tuple[str, Any, Any]]:
    """Keys for a scenario, as `wanted.Wanted`."""
    count = outline.given(f"framework_options.{_LAYERS}")
    yield "model.cpu_offloading", outline.given(_KEY) == "host" and count is not None, False
    yield f"model.{_LAYERS}", count or 0, 0
