"""Experts in Megatron-Bridge's configurations: dispatcher, router, capacity, and the paged stash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader

__all__ = ["PADS", "read_experts", "wanted_stash"]

_OPTION: Final = "framework_options."
_COUNTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")
PADS: Final = "model.moe_router_padding_for_fp8"
"""The older name of moe_router_padding_for_quantization (Megatron-LM d98e8a64 transformer_config.py:2641)."""
_QUANTIZED: Final = "moe_router_padding_for_quantization"
_CAPACITY: Final = "moe_expert_rank_capacity_factor"
_STASH: Final = "moe_paged_stash"
_PAGE: Final = f"{_STASH}_page_size"
_FACTORS: Final = {f"{_STASH}_buffer_size_factor_cuda": 1.1, f"{_STASH}_buffer_size_factor_cpu": 0.0}
"""Defaults of Megatron-LM main (2026-08-22) transformer/transformer_config.py."""


def read_experts(reader: Reader, draft: Draft) -> None:
    """Writes the dispatcher; a backend is read with the dispatcher flex."""
    kind, backend = reader.text("model.moe_token_dispatcher_type"), reader.text("model.moe_flex_dispatcher_backend")
    router, forced = reader.text("model.moe_router_dtype"), reader.flag("model.moe_router_force_load_balancing")
    shared = reader.flag("model.moe_shared_expert_overlap")
    capacity, pads = reader.number("model.moe_expert_capacity_factor"), reader.flag(
        "model.moe_pad_expert_input_to_capacity")
    _read_padding(reader, draft)
    if not _has_experts(draft):
        draft.idle([one for one in (kind, backend, router, forced, shared, capacity, pads) if one],
                   "the model has no experts")
        _read_stash(reader, draft, experts=False)
        return
    _read_stash(reader, draft, experts=True)
    draft.use(pads, why="read with moe_expert_capacity_factor alone")
    if capacity is not None:
        draft.put("training.routing.capacity_factor", capacity)
        if pads is None or not pads.value:
            draft.put("training.routing.pad", pads or capacity, False)  # noqa: FBT003
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


def _read_stash(reader: Reader, draft: Draft, *, experts: bool) -> None:
    """Writes the options; those of a stash that is off, or of a model without `experts`, are idle."""
    capacity, stash, page = (reader.number(f"model.{_CAPACITY}"), reader.flag(f"model.{_STASH}"),
                             reader.integer(f"model.{_PAGE}"))
    factors = {name: reader.number(f"model.{name}") for name in _FACTORS}
    rest = [one for one in (page, *factors.values()) if one is not None]
    if not experts:
        given = [one for one in (capacity, stash) if one is not None]
        draft.idle([*given, *rest], "the model has no experts")
        return
    if capacity is not None:
        draft.put(f"{_OPTION}{_CAPACITY}", capacity, float(capacity.value))
    if stash is None or not stash.value:
        draft.use(stash, why="off, as without it")
        draft.idle(rest, f"it is read with {_STASH}")
        return
    draft.put(f"{_OPTION}{_STASH}", stash)
    if page is not None:
        draft.put(f"{_OPTION}{_PAGE}", page)
    for name, one in factors.items():
        if one is not None:
            draft.put(f"{_OPTION}{name}", one, float(one.value))


def wanted_stash(outline: Outline) -> Iterator[tuple[str, Any, Any]]:
    """Keys for a scenario (`wanted.Wanted`)."""
    yield f"model.{_CAPACITY}", outline.given(f"{_OPTION}{_CAPACITY}"), None
    stash = outline.given(f"{_OPTION}{_STASH}")
    yield f"model.{_STASH}", stash is True, False
    if not stash:
        if stash is False:
            outline.as_without(f"{_OPTION}{_STASH}")
        return
    for name, usual in ((_PAGE, 64), *_FACTORS.items()):
        given = outline.given(f"{_OPTION}{name}")
        yield f"model.{name}", usual if given is None else given, usual
        if given == usual:
            outline.as_without(f"{_OPTION}{name}")
