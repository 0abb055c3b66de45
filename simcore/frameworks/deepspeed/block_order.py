"""The order in which a block calls its linears, their norms and its activation, as ZeRO's hooks on modules see it.

Most families norm queries and keys as soon as they are there (transformers 5.23 `modeling_qwen3.py`:244). Gemma 3 does
so behind all three products (`modeling_gemma3.py`:345), Gemma 4 for keys alone, and norms values too, without weights
(`modeling_gemma4.py`:1213); Hunyuan's norms run behind the rotation (`modeling_hunyuan_v1_dense.py`). A gated MLP calls
its activation behind the first of two products, Falcon-H1's behind both (`modeling_falcon_h1.py`, FalconH1MLP).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.frameworks.deepspeed.module_units import BLANK, Calls, Chain, Container, Linear, Refs, Unit
from simcore.models.blocks import Attention, Branch, LayerKind, Mamba2, Mixer
from simcore.operators.hf.remote_code import LINEARS

__all__ = ["FIRST_PRODUCT", "place_of", "read_by_kernel", "refuse_further", "with_activation", "with_experts",
           "with_norms"]

FIRST_PRODUCT: Final = ".in_proj"
_READY: Final = ("conv1d.bias", "D", "norm.weight", "dt_bias", "out_proj.weight", "conv1d.weight", "A_log")
"""Parameters of a Mamba-2 mixer in the order of their gradients; without a norm the last product's come before dt_bias.

The heap of [Note: parameters that a kernel reads], which was given the kernel's inputs in their order, and run.
"""
_LATE: Final = {**dict.fromkeys(("exaone4", "exaone_moe", "gemma3_text"), ("q_norm", "k_norm")),
                "gemma4_text": ("k_norm",)}
"""Norms that run behind all products of a family's attention."""
_UP_FIRST: Final = ("falcon_h1",)
"""Families whose MLP makes the gate's factor before the gate."""


@dataclass(frozen=True, slots=True)
class _LateNorm:
    """A norm of what a linear made, with other linears between them."""

    norm: Linear
    of: Linear

    @property
    def inside(self) -> Refs:
        """All of its parameters."""
        return self.norm.inside

    def forward(self) -> Calls:
        """Returns its calls in forward, in order."""
        return self.norm.forward()

    def backward(self) -> Calls:
        """Returns its calls in backward, the last one first."""
        return self.norm.backward()

    def without_input_grad(self) -> Calls:
        """Returns its calls in backward where the linear's input needs no gradient: none if it has no adapter."""
        return self.norm.backward() if self.of.adapters else []


def place_of(named: Sequence[str], path: str, family: str) -> float:
    """Place of a module among the calls of its block, where that is not the one of its registration.

    `named`: paths of all modules of the layer that have parameters, as they are registered.
    """
    module, _, name = path.rpartition(".")
    if family in _UP_FIRST and name == "up_proj":
        return named.index(f"{module}.gate_proj") - 0.5
    if name in ("query_layernorm", "key_layernorm") or name in _LATE.get(family, ()):
        return named.index(f"{module}.o_proj") - 0.5
    before = f"{module}.{name.replace('_norm', '_proj')}" if name in ("q_norm", "k_norm") else path
    return named.index(before if before in named else path)


def with_norms(linears: Mapping[str, Linear], block: Mixer, family: str) -> list[Unit]:
    """Modules of attention in the order of calls: queries or keys together with their norm where nothing is between."""
    norms = {path.replace("_norm", "_proj"): path for path in linears if path.endswith((".q_norm", ".k_norm"))}
    late = {path for path in norms.values() if path.rpartition(".")[2] in _LATE.get(family, ())}
    units = list[Unit]()
    for path, linear in linears.items():
        if path in late:
            units.append(_LateNorm(linear, linears[path.replace("_norm", "_proj")]))
        elif path in norms and norms[path] not in late:
            units.append(Chain((linear, linears[norms[path]])))
        elif path not in norms.values():
            units.append(linear)
    if isinstance(block, Attention) and block.value_norm:
        made_of = [linear for path, linear in linears.items() if path.endswith((".v_proj", ".k_proj"))]
        units.insert(-1, _LateNorm(Linear(()), made_of[-1]))
    return units


def read_by_kernel(branch: Branch, linears: Mapping[str, Linear],
                   refs: Mapping[str, tuple[int, int]]) -> tuple[Refs, Refs]:
    """Parameters of modules that a mixer's kernel reads, and all that it reads in the order of their gradients.

    See [Note: parameters that a kernel reads]; none of other blocks. `refs`: of the layer's parameters, by name.
    """
    if not isinstance(branch.block, Mamba2):
        return (), ()
    read = tuple(ref for path in linears if not path.endswith(FIRST_PRODUCT) for ref in linears[path].own)
    names = list(_READY)
    if not branch.block.normed:
        names.insert(names.index("dt_bias"), names.pop(names.index("out_proj.weight")))
    return read, tuple(refs[f"{branch.name}.{name}"] for name in names if f"{branch.name}.{name}" in refs)


def with_activation(units: Sequence[Unit], family: str) -> list[Unit]:
    """Modules of an MLP in the order of calls, its activation, which has no parameters, among them."""
    at = 1 if family in _UP_FIRST else 0
    return [*units[:at], Chain((units[at], BLANK)), *units[at + 1:]]


def with_experts(linears: Mapping[str, Linear], experts: Mapping[str, int], family: str) -> list[Unit]:
    """Router, experts one after the other, shared expert: each expert a container of two or three linears.

    `experts`: paths of the linears that each expert has, with the number of experts.
    """
    paths = list(experts)
    if family in LINEARS:  # Mixtral registers them in another order
        paths.sort(key=lambda path: LINEARS[family].index(path.rpartition(".")[2]))
    others = {path: linear for path, linear in linears.items() if path not in experts}
    shared = [linear for path, linear in others.items() if path.count(".") > 1]
    router = [linear for linear in others.values() if linear not in shared]
    routed = [[_of_expert(linears[path], number) for path in paths] for number in range(experts[paths[0]])]
    modules = [*routed, *([shared] if shared else [])]
    return [*router, *(Container((), (first, BLANK, *rest)) for first, *rest in modules)]


def _of_expert(linear: Linear, expert: int) -> Linear:
    def of(refs: Refs) -> Refs:
        return tuple((number, expert) for number, _ in refs)

    return replace(linear, own=of(linear.own), adapters=tuple(map(of, linear.adapters)),
                   magnitude=of(linear.magnitude))


def refuse_further(kind: LayerKind) -> None:
    """Raises NotYet for layers of which modules are called in an order that was not measured."""
    for said, what in ((kind.joined, "experts beside an MLP"), (kind.own_input, "inputs of single layers"),
                       (kind.streams, "several residual streams"), (kind.shared, "a transformer that layers share"),
                       (kind.family == "phi", "modules of dropout behind blocks (phi)")):
        if said:
            raise NotYet(Problem("model", f"not yet: {what} under DeepSpeed, whose hooks follow the order of modules; "
                                 "placement is served"))
