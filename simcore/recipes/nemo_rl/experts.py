"""Experts of a policy that trains by Megatron: router, dispatcher, kernels.

NeMo RL 7ea279ab `models/megatron/setup.py` (_apply_moe_config) sets them whatever the degree of expert parallelism is.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.experts import experts_of
from simcore.recipes.megatron.without_effect import SMS
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.reader import Reader

__all__ = ["read_experts"]

_OPTION: Final = "framework_options."
_FLAGS: Final = ("moe_permute_fusion", "moe_grouped_gemm", "moe_shared_expert_overlap")
_BALANCING: Final = "moe_router_load_balancing_type"
_KEYS: Final = (*_FLAGS, _BALANCING, "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep",
                "moe_router_dtype", "freeze_moe_router", "moe_hybridep_*", "hybridep_*")
_GROUPS: Final = ("moe_router_num_groups", "moe_router_group_topk")
_VALUES: Final = ("moe_router_bias_update_rate", "moe_aux_loss_coeff", "moe_router_enable_expert_bias")
"""Keys of the router that no tensor's size depends on."""


def read_experts(reader: Reader, draft: Draft, at: str) -> None:
    """Writes what the recipe says of experts under `at`; nothing for a model that has none."""
    if not _has_experts(draft):
        names = (*_KEYS, *_VALUES, *_GROUPS)
        draft.idle(reader.matching(*(f"{at}.{name}" for name in names)), "the model has no experts")
        return
    draft.idle(reader.matching(*(f"{at}.{name}" for name in _VALUES)), "values, not tensors")
    draft.unmodelled(reader.matching(f"{at}.moe_hybridep_*"), SMS)
    draft.idle(reader.matching(f"{at}.hybridep_*"), "ranks of an NVLink domain: those of the topology")
    draft.unmodelled(reader.matching(*(f"{at}.{name}" for name in _GROUPS)),
                     "groups within which a token chooses its experts are those of the model's configuration")
    for name in _FLAGS:
        draft.put(f"{_OPTION}{name}", reader.flag(f"{at}.{name}"))
    _read_dispatcher(reader, draft, at)
    _read_router(reader, draft, at)


def _has_experts(draft: Draft) -> bool:
    """True for a model with a mixture of experts, and for one that is not known."""
    found = experts_of(draft)
    return found is None or bool(found)


def _routes_by_softmax(draft: Draft) -> bool:
    """True for experts whose router is simulated in the format of its input where nothing says another."""
    return all(block.router == "softmax" for block in experts_of(draft) or ())


def _read_dispatcher(reader: Reader, draft: Draft, at: str) -> None:
    kind, backend = reader.text(f"{at}.moe_token_dispatcher_type"), reader.text(f"{at}.moe_flex_dispatcher_backend")
    deep = reader.flag(f"{at}.moe_enable_deepep")
    draft.put(f"{_OPTION}moe_token_dispatcher_type", kind)
    if kind is None or kind.value != "flex":
        draft.idle([one for one in (backend, deep) if one], "of the dispatcher flex alone")
        return
    draft.put(f"{_OPTION}moe_flex_dispatcher_backend", backend)
    draft.use(deep, why="beside the backend of the dispatcher")
    if backend is None:
        draft.infer(f"{_OPTION}moe_flex_dispatcher_backend", "deepep", "the default of flex")


def _read_router(reader: Reader, draft: Draft, at: str) -> None:
    key, still = f"{at}.moe_router_dtype", reader.flag(f"{at}.freeze_moe_router")
    nulls = reader.matching(key) if reader.look(key) is None else ()
    router = reader.text(key)
    for one in nulls:
        if _routes_by_softmax(draft):
            draft.idle(one, "routers compute in the format of their input, as is simulated")
        else:
            draft.unmodelled(one, "routers that compute in the format of their input: they are counted in fp32")
    if router is not None:
        draft.infer(f"{_OPTION}moe_router_dtype", "fp32", "fp32 or wider: fp64 is counted as fp32", router)
    if still is not None and still.value and not reader.look(f"{at}.peft.enabled"):
        draft.unmodelled(still, "weights of routers are counted as trained: their gradients and states are small")
    else:
        draft.idle(still, "the router learns, or everything but adapters is frozen")
    read_switches(reader, draft, {f"{at}.{_BALANCING}": "terms of a balancing loss are not counted"})
