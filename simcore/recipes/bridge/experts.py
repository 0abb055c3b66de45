"""Experts in Megatron-Bridge's configurations: dispatcher, router, capacity."""

from __future__ import annotations

from typing import Any, Final

from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.recipes.bridge.stash import read_stash
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["PADS", "read_experts"]

_OPTION: Final = "framework_options."
_COUNTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")
PADS: Final = "model.moe_router_padding_for_fp8"
"""The older name of moe_router_padding_for_quantization (Megatron-LM d98e8a64 transformer_config.py:2641)."""
_QUANTIZED: Final = "moe_router_padding_for_quantization"


def read_experts(reader: Reader, draft: Draft) -> None:
    """Writes the dispatcher; a backend is read with the dispatcher flex."""
    kind, backend = reader.text("model.moe_token_dispatcher_type"), reader.text("model.moe_flex_dispatcher_backend")
    router, forced = reader.text("model.moe_router_dtype"), reader.flag("model.moe_router_force_load_balancing")
    shared = reader.flag("model.moe_shared_expert_overlap")
    _read_padding(reader, draft)
    if not _has_experts(draft):
        draft.idle([one for one in (kind, backend, router, forced, shared) if one], "the model has no experts")
        read_stash(reader, draft, experts=False)
        return
    read_stash(reader, draft, experts=True)
    capacity, pads = reader.number("model.moe_expert_capacity_factor"), reader.flag(
        "model.moe_pad_expert_input_to_capacity")
    draft.use(pads, why="read with moe_expert_capacity_factor alone")
    if capacity is not None and pads is not None and pads.value:
        draft.put("training.routing.capacity_factor", capacity)
    elif capacity is not None:
        draft.unmodelled(capacity, "tokens beyond an expert's capacity are dropped: routing is taken as balanced")
    if shared is not None and shared.value:
        draft.put(f"{_OPTION}moe_shared_expert_overlap", shared)
    else:
        draft.use(shared, why="off, as without it")
    if kind is not None:
        draft.put(f"{_OPTION}moe_token_dispatcher_type", kind)
    if backend is not None and kind is not None and kind.value == "flex":
        draft.put(f"{_OPTION}moe_flex_dispatcher_backend", backend)
    else:
        draft.idle(backend, "it is read with the dispatcher flex")
    if router is not None and router.value == "bf16":
        draft.idle(router, "core main transformer/moe/router.py asks for fp32 and fp64 alone: it stays that of its "
                           "input")
    elif router is not None:
        draft.put(f"{_OPTION}moe_router_dtype", router)
    if forced is not None and forced.value and "routing" not in draft.values["training"]:
        draft.put("training.routing", forced, "balanced")
    else:
        draft.use(forced, why="training.routing says it" if forced and forced.value else "off, as without it")


def _read_padding(reader: Reader, draft: Draft) -> None:
    """Rows of experts that are padded for fp8 or fp4, by the present name of the switch or the older one."""
    older, present = reader.flag(PADS), reader.flag(f"model.{_QUANTIZED}")
    on = next((one for one in (older, present) if one is not None and one.value), None)
    draft.use(older, present, why="off, as without it" if on is None else f"{_OPTION}{_QUANTIZED} says it")
    if on is None:
        return
    if draft.values["training"]["precision"]["compute"] not in ("fp8", "fp4"):
        draft.fail(on.where, f"fp8/fp4 must be specified when {_QUANTIZED} is True (Megatron-LM d98e8a64 "
                             "transformer/transformer_config.py:2649)")
    draft.put(f"{_OPTION}{_QUANTIZED}", on)


def _has_experts(draft: Draft) -> bool:
    """True for a model with experts: its configuration has a number of them, or its pattern of layers such layers."""
    mesh, model = draft.values.get("mesh", {}), draft.values.get("model", "")
    if "ep" in mesh or "etp" in mesh:
        return True
    name: Any = model if isinstance(model, str) else model.get("config", "")
    changed: Any = {} if isinstance(model, str) else model.get("overrides", {})
    if "hybrid_override_pattern" in changed:
        return "E" in str(changed["hybrid_override_pattern"])
    config = {**(model_config(name, None, "") if find(name) is not None else {}), **changed}
    return any(config.get(field) for field in _COUNTS)
