"""Activations on the host in Megatron-Bridge's configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.megatron.offload import FINE, KEY, LAYERS, MODULES, OPTION, SMALLEST
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader

__all__ = ["read_offload", "wanted_offload"]

_INFLIGHT: Final = "fine_grained_offloading_max_inflight_offloads"
_LATER: Final = ("delay_offload_until_cuda_graph", _INFLIGHT)
_IGNORED: Final = ("cpu_offloading_weights", "cpu_offloading_double_buffering")


def read_offload(reader: Reader, draft: Draft) -> None:
    """Writes which layers', or modules', saved tensors wait on the host."""
    _read_modules(reader, draft)
    asked, count = reader.flag("model.cpu_offloading"), reader.integer(f"model.{LAYERS}")
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
    draft.put(KEY, asked, "host")
    draft.use(kept, why="activations leave, as without it")
    draft.put(f"{OPTION}{LAYERS}", count)


def _read_modules(reader: Reader, draft: Draft) -> None:
    fine, modules = reader.flag(f"model.{FINE}"), reader.words(f"model.{MODULES}")
    smallest, share = reader.integer(f"model.{SMALLEST}"), reader.number("model.activation_offload_fraction")
    later = [one for name in _LATER if (one := reader.take(f"model.{name}"))]
    delta = reader.integer("model.delta_offload_bytes_across_pp_ranks")
    if fine is None or not fine.value:
        draft.idle([one for one in (fine, modules, smallest, share, delta, *later) if one],
                   "no module's activations leave")
        return
    draft.infer(KEY, "host", FINE, fine)
    draft.put(f"{OPTION}{FINE}", fine)
    if modules is not None:
        draft.put(f"{OPTION}{MODULES}", modules, list(modules.value))
    if smallest is not None and smallest.value != 1024 * 1024:
        draft.put(f"{OPTION}{SMALLEST}", smallest)
    else:
        draft.use(smallest, why="1 Mi elements, as without it")
    if share is not None and share.value != 1:
        draft.refuse(share, "a part of the groups of modules")
    else:
        draft.use(share, why="all groups, as without it")
    if delta is not None and delta.value:
        draft.refuse(delta, "groups of modules that stay by the number of the stage")
    else:
        draft.use(delta, why="0, as without it")
    for one in later:
        draft.unmodelled(one, "when copies to the host begin, and how many run before kernels wait")


def wanted_offload(outline: Outline) -> Iterator[tuple[str, Any, Any]]:
    """Keys for a scenario, as `wanted.Wanted`."""
    count = outline.given(f"{OPTION}{LAYERS}")
    modules, smallest = outline.given(f"{OPTION}{MODULES}"), outline.given(f"{OPTION}{SMALLEST}")
    yield f"model.{FINE}", outline.given(f"{OPTION}{FINE}") is True, False
    yield f"model.{MODULES}", modules, None
    yield f"model.{SMALLEST}", 1024 * 1024 if smallest is None else smallest, 1024 * 1024
    if modules and outline.given(f"{OPTION}cuda_graph_impl") == "full_iteration":
        yield f"model.{_INFLIGHT}", 1, None  # Megatron-LM d98e8a64 transformer/transformer_config.py:2967 asks for it
    yield "model.cpu_offloading", outline.given(KEY) == "host" and count is not None, False
    yield f"model.{LAYERS}", count or 0, 0
