"""In which order the modules of transformers' layers are called: what hooks on modules see.

A call is the numbers of the parameters that the module has itself; most containers and activations have none. Backward
runs in reverse, a container before what it holds. A checkpointed layer is replayed when the first of its modules needs
what it has saved: the last linear (torch 2.13 `utils/checkpoint.py`, use_reentrant=False).
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.models.blocks import Embedding, Mlp
from simcore.plan import Plan

__all__ = ["Calls", "backward_calls", "forward_calls", "readiness"]

Calls = list[tuple[int, ...]]


def forward_calls(plan: Plan, layer: int) -> Calls:
    """Calls of a layer or part."""
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if kind.block is not None:
        own = [tuple(number for number, p in enumerate(plan.of_layer(layer)) if not p.spec.is_buffer)]
        if isinstance(kind.block, Embedding):  # the model, its inner model; the rotary embedding
            return [(), (), *own, ()]
        return own if own[0] else []
    return [(), *(call for part in _parts(plan, layer) for call in part)]


def backward_calls(plan: Plan, layer: int) -> tuple[Calls, Calls]:
    """Calls until the layer's replay is over, and those after it; all of them come after it if there is none."""
    kind = plan.graph.kinds[plan.graph.layers[layer].kind]
    if kind.block is not None:  # the model before its head, the inner model before its norm
        own = [call for call in forward_calls(plan, layer) if call]
        return [], [(), *own] if own and not isinstance(kind.block, Embedding) else own
    backward: Calls = [()]
    for norm, container, *inside in reversed(_parts(plan, layer)):
        backward += [container, *reversed(inside), norm]
    if plan.framework.checkpoint == "none":
        return [], backward
    return [*backward[:3], *forward_calls(plan, layer)], backward[3:]


def _parts(plan: Plan, layer: int) -> list[Calls]:
    """For each branch its norm, its container (with what it has itself: sinks, Mamba's vectors) and what is inside.

    A gated MLP has an activation.
    """
    kind, named = plan.graph.kinds[plan.graph.layers[layer].kind], _by_module(plan, layer)
    parts: list[Calls] = []
    for branch in kind.branches:
        inside = [numbers for path, numbers in named.items() if path.startswith(f"{branch.name}.")]
        if isinstance(branch.block, Mlp):
            inside.insert(1, ())
        parts.append([named.get(branch.norm, ()), named.get(branch.name, ()), *inside])
    return parts


def _by_module(plan: Plan, layer: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, placed in enumerate(plan.of_layer(layer)):
        if not placed.spec.is_buffer:
            path = placed.spec.name.rpartition(".")[0]
            found[path] = (*found.get(path, ()), number)
    return found


def readiness(plan: Plan, layer: int, *, weight_first: bool = False) -> Sequence[int]:
    """Trained parameters in the order in which autograd has their gradients.

    A linear's bias comes before its weight, but for ZeRO-3's own linear (0.19.6 `runtime/zero/linear.py`).
    """
    placed = plan.of_layer(layer)
    return [number for call in reversed(forward_calls(plan, layer)) for number in (call if weight_first else call[::-1])
            if placed[number].trainable]
