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
from simcore.frameworks.deepspeed.modules.units import BLANK, Call, Calls, Chain, Container, Linear, Refs, Unit
from simcore.models.blocks import Attention, Branch, GatedDeltaNet, LatentAttention, LayerKind, Mamba2, Mixer
from simcore.operators.hf.remote_code import LINEARS

__all__ = ["FIRST_PRODUCT", "around", "around_delta_rule", "beside_mlp", "dropped_behind", "place_of", "read_by_kernel",
           "refuse_further", "with_activation", "with_experts", "with_joined_experts", "with_norms"]

FIRST_PRODUCT: Final = ".in_proj"
_CONVOLUTION: Final = ".conv1d"
_READY: Final = ("conv1d.bias", "D", "norm.weight", "dt_bias", "out_proj.weight", "conv1d.weight", "A_log")
"""Parameters of a Mamba-2 mixer in the order of their gradients; without a norm the last product's come before dt_bias.

The heap of [Note: parameters that a kernel reads], which was given the kernel's inputs in their order, and run.
"""
_LATE: Final = {**dict.fromkeys(("exaone4", "exaone_moe", "gemma3_text"), ("q_norm", "k_norm")),
                "gemma4_text": ("k_norm",)}
"""Norms that run behind all products of a family's attention."""
_LAST: Final = ("o_proj", "norm", "out_proj")
"""Modules of a mixer that run last, in their order, wherever they are registered."""
_SHARED_FIRST: Final = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
"""Families whose shared expert runs before the router (transformers 5.23 `modeling_qwen3_next.py`:848)."""
_DROPS: Final = ("phi", "phi3")
"""Families with a module of dropout, without parameters, behind each block (transformers 5.23 `modeling_phi.py`:222).

The first has one behind the embedding too. If nothing is dropped they are called all the same.
"""
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
    if name in _LAST:
        return len(named) + _LAST.index(name)
    before = f"{module}.{name.replace('_norm', '_proj')}" if name in ("q_norm", "k_norm") else path
    return named.index(before if before in named else path)


def with_norms(linears: Mapping[str, Linear], block: Mixer, family: str, sinks: Refs = ()) -> list[Unit]:
    """Modules of attention in the order of calls: queries or keys together with their norm where nothing is between.

    Gradients of `sinks` come before those of the first products.
    """
    if isinstance(block, LatentAttention):
        return _latent(linears)
    norms = {path.replace("_norm", "_proj"): path for path in linears if path.endswith((".q_norm", ".k_norm"))}
    late = {path for path in norms.values() if path.rpartition(".")[2] in _LATE.get(family, ())}
    units = list[Unit]()
    for path, linear in (_before_last(linears, sinks) if sinks else linears).items():
        if path in late:
            units.append(_LateNorm(linear, linears[path.replace("_norm", "_proj")]))
        elif path in norms and norms[path] not in late:
            units.append(Chain((linear, linears[norms[path]])))
        elif path not in norms.values():
            units.append(linear)
    if isinstance(block, Attention) and block.value_norm:
        made_of = [linear for path, linear in linears.items() if path.endswith((".v_proj", ".k_proj"))]
        units.insert(-1, _LateNorm(Linear(()), made_of[-1]))
    if isinstance(block, Attention) and block.unit_norms:  # of queries, then keys, behind the rotation
        query, key, *_ = linears.values()
        units[-1:-1] = [_LateNorm(Linear(()), query), _LateNorm(Linear(()), key)]
    return units


def _before_last(linears: Mapping[str, Linear], ready: Refs) -> dict[str, Linear]:
    """`linears`, of which the last but one has gradients behind those of `ready`."""
    path = list(linears)[-2]
    return {**linears, path: replace(linears[path], ready=ready)}


def _latent(linears: Mapping[str, Linear]) -> list[Unit]:
    """Queries and keys of latent attention, each a product, its norm and a product of that; then the last product."""
    found = dict[str, list[Linear]]()
    for path, linear in linears.items():
        found.setdefault(path.rpartition(".")[2].partition("_")[0], []).append(linear)
    return [Chain(tuple(units)) if len(units) > 1 else units[0] for units in found.values()]


def read_by_kernel(branch: Branch, linears: Mapping[str, Linear],
                   refs: Mapping[str, tuple[int, int]]) -> tuple[Refs, Refs]:
    """Parameters of modules that a mixer's kernel reads, and all that it reads in the order of their gradients.

    See [Note: parameters that a kernel reads]; none of other blocks. `refs`: of the layer's parameters, by name.
    """
    if isinstance(branch.block, GatedDeltaNet):
        return linears[f"{branch.name}{_CONVOLUTION}"].own, ()
    if not isinstance(branch.block, Mamba2):
        return (), ()
    read = tuple(ref for path in linears if not path.endswith(FIRST_PRODUCT) for ref in linears[path].own)
    names = list(_READY)
    if not branch.block.normed:
        names.insert(names.index("dt_bias"), names.pop(names.index("out_proj.weight")))
    return read, tuple(refs[f"{branch.name}.{name}"] for name in names if f"{branch.name}.{name}" in refs)


def dropped_behind(family: str, *, embedding: bool = False) -> Calls:
    """Returns the calls of the module of dropout behind each block of a family's layers, or behind its embedding."""
    return BLANK.forward() if family in (_DROPS[:1] if embedding else _DROPS) else []


def around(whole: Call, calls: Sequence[Call], *, closes: bool = True) -> Calls:
    """Calls of a layer: its own, and those inside, behind which what it holds itself is released if it `closes`.

    NemotronH's layer reads the type of its norm's weight, which DeepSpeed then takes for its own (transformers 5.23
    `modeling_nemotron_h.py`:963).
    """
    if not whole.own:
        return [whole, *calls]
    inside = [replace(call, released=()) if call.own == whole.own else call for call in calls]
    if closes:
        inside[-1] = inside[-1].and_releases(whole.own)
    return [replace(whole, released=()), *inside]


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


def around_delta_rule(linears: Mapping[str, Linear], name: str, refs: Mapping[str, tuple[int, int]]) -> list[Unit]:
    """Products, norm and last product of a gated delta net, whose convolution reads its weight without its module.

    Gradients of the decay and the convolution come between (transformers 5.23 `modeling_qwen3_next.py`:640). `name`: of
    the block, `refs`: of the layer's parameters, by name.
    """
    *products, norm, last = (one for path, one in linears.items() if not path.endswith(_CONVOLUTION))
    ready = tuple(refs[f"{name}.{one}"] for one in ("dt_bias", "A_log", "conv1d.weight"))
    return [*products[:-1], replace(products[-1], ready=ready), norm, last]


def with_joined_experts(linears: Mapping[str, Linear], name: str, family: str) -> list[Unit]:
    """Router, all experts as one module with an activation in it, shared expert and its gate, in the order of calls.

    `name`: of the block. The experts' module weighs what its products have made (transformers 5.23
    `integrations/moe.py`); GPT-OSS's acts without a module.
    """
    joined, shared = linears[f"{name}.experts"], [one for path, one in linears.items() if path.count(".") > 1]
    half, inside = len(joined.own) // 2, () if family == "gpt_oss" else (BLANK,)
    experts = joined if joined.adapters else Container(joined.own, inside, combines=True,
                                                       ready=(*joined.own[half:], *joined.own[:half]))
    gates = [one for path, one in linears.items() if path.endswith(".shared_expert_gate")]
    routers = [one for one in linears.values() if one is not joined and one not in (*shared, *gates)]
    beside: list[Unit] = [Container((), (shared[0], BLANK, *shared[1:]))] if shared else []
    latent = () if family != "nemotron_h" else (BLANK,)  # where there is no latent width, modules of nothing
    routed = [*routers, *latent, experts, *latent]
    return [*(beside + routed if family in _SHARED_FIRST else routed + beside), *gates]


def beside_mlp(linears: Mapping[str, Linear], own: Refs, *, is_router: bool) -> Container:
    """Gemma 4's router, whose norm has no weights, or its experts, which are one module with an activation in it.

    The experts' runs once where they are multiplied in groups (transformers 5.23 `integrations/moe.py`). `own`: what
    the module holds itself. The gradient of the router's last factor comes before its linear's; experts' the last
    first.
    """
    return Container(own, (BLANK, *linears.values()), ready=own[1:] if is_router else own[::-1])


def _of_expert(linear: Linear, expert: int) -> Linear:
    def of(refs: Refs) -> Refs:
        return tuple((number, expert) for number, _ in refs)

    return replace(linear, own=of(linear.own), adapters=tuple(map(of, linear.adapters)),
                   magnitude=of(linear.magnitude))


def refuse_further(kind: LayerKind) -> None:
    """Raises NotYet for layers of which modules are called in an order that was not measured."""
    for said, what in ((kind.own_input, "inputs of single layers"), (kind.streams, "several residual streams"),
                       (kind.shared, "a transformer that layers share"),
                       (kind.family == "gpt_neox" and kind.branches, "layers of GPT-NeoX")):
        if said:
            raise NotYet(Problem("model", f"not yet: {what} under DeepSpeed, whose hooks follow the order of modules; "
                                 "placement is served"))
