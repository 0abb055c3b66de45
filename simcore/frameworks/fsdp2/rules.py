"""Layouts of a model's tensors under FSDP2: the rule that a tensor falls under, and its layouts in each state.

Rules: torch 2.13 `torch/distributed/fsdp/_fully_shard/`: every parameter is cut on dimension 0 in `ceil(d0 / W)` rows
and its storage is padded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from simcore.frameworks.common.expert_modules import LAYERS
from simcore.frameworks.common.qlora import STORAGE_OPTION, is_packed, packed_of
from simcore.frameworks.common.torch import States, is_hidden_matrix, states_of
from simcore.frameworks.fsdp2.pairs.reference import REFERENCE
from simcore.frameworks.fsdp2.pairs.rules import reads_head_apart, stored_reference
from simcore.frameworks.fsdp2.split.matrices import ties_again
from simcore.frameworks.fsdp2.trainers import TRAINERS
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Matches, Rule, TensorPolicy, UpdateTime
from simcore.placement.job import Draft
from simcore.placement.layout import Partial, Placements, Shard, TensorLayout
from simcore.recording.number_formats import PackedWeights

__all__ = ["packed_weights", "rules_of"]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Settings that tensor policies depend on, apart from the tensor itself. `kept`: the optimizer's states.

    `by_width`: experts are cut by their width too (etp). `experts_cut`: mesh axis of the ranks that cut experts of one
    rank once more, and the dimension.
    `on_host`: sharded tensors rest there; `pin_memory` is the policy's default, states are not pinned.
    `head_apart`: [Note: a head read apart]; `reference`: type in which a reference model rests.
    `in_backward`: [Note: optimizer in backward] in `simcore/placement/optimizer_step.py`.
    """

    stored: str
    compute: str
    weights: str
    adapters: str
    kept: States
    splits_experts: bool
    experts_cut: tuple[str, int]
    by_width: bool
    fully: bool
    on_host: bool
    in_backward: bool
    packed: PackedWeights | None
    ties_again: bool = False
    head_apart: bool = False
    reference: str = ""


def packed_weights(job: Draft, options: dict[str, Any]) -> PackedWeights | None:
    """Returns the format in which frozen linears are packed in 4 or 8 bits; None without qlora.

    `options`: the framework options that the scenario sets, by name.
    [Note: FSDP2 and weights in 4 bits] Columns of bytes are whole on every rank, others are cut. accelerate 1.15
    `utils/fsdp_utils.py:797` has FSDP ignore uint8. A column of a floating type is gathered like other parameters, so
    it must have the products' own: torch 2.13 `_fsdp_param.py`, init_dtype_attrs, casts any other; that is refused.
    Constants are no parameters: every rank has all of them.
    """
    if job.graph.implementation not in LAYERS:
        if job.scenario.training.method == "qlora":
            raise job.not_yet("training.method", f"qlora with the layers of {job.graph.implementation}")
        return None
    packed = packed_of(job, options)
    if packed and not packed.is_tensor and packed.storage not in ("uint8", job.compute):
        raise job.illegal(f"framework_options.{STORAGE_OPTION}", f"packed values in {packed.storage} would be cast to "
                          f"{job.compute}", "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs")
    return packed


def rules_of(job: Draft, stored: str, packed: PackedWeights | None, *, fully: bool,
             in_backward: bool) -> tuple[Rule, ...]:
    """Returns the rules that give each tensor its layouts; the first one that matches a tensor counts.

    `stored`: dtype of parameters at rest. `packed`: format of packed weights, or None. `fully`: experts, split over
    ranks, are wrapped by `fully_shard` too. `in_backward`: the optimizer runs inside backward.
    """
    adapter, trainer = job.scenario.training.lora.dtype, TRAINERS[job.graph.implementation]
    choice = _Choice(stored, job.compute, trainer.gathered_weights(job), stored if adapter == "auto" else adapter,
                     states_of(job), job.mesh.ep > 1, (trainer.experts_axes(job)[0], trainer.experts_dim(job)),
                     job.mesh.etp > 1, fully,
                     job.scenario.training.offload.part("params")[1] > 0, in_backward, packed, ties_again(job),
                     reads_head_apart(job, job.scenario.framework_options), stored_reference(job, stored))
    whole = trainer.defaults.whole_in_stages if job.mesh.pp > 1 else ()
    cuts = _tp_cuts(job.graph) if job.mesh.tp > 1 else ()
    made = [_made_rules(replace(choice, stored=dtype or stored), cuts, job.graph.implementation, whole)
            for dtype in ("", *_insisted(job.graph))]
    return (*(Rule(_both(_is_stored_in(dtype), rule.matches), rule.policy)
              for dtype, rules in zip(_insisted(job.graph), made[1:], strict=True) for rule in rules), *made[0])


@lru_cache(maxsize=64)
def _insisted(graph: ModelGraph) -> tuple[str, ...]:
    """Dtypes in which the implementation makes parameters whatever the scenario says (`TensorSpec.stored`)."""
    return tuple(sorted({spec.stored for specs in graph.tensors for spec in specs if spec.is_owned and spec.stored}))


def _is_stored_in(dtype: str) -> Matches:
    return lambda spec: spec.stored == dtype and not spec.is_buffer


@lru_cache(maxsize=256)
def _made_rules(choice: _Choice, tp_cuts: tuple[Placements, ...], code: str, whole: tuple[str, ...]) -> tuple[Rule,
                                                                                                              ...]:
    """FSDP2 cuts on dimension 0 what tensor parallelism has left (torch 2.13 `_fsdp_param.py`, strided shards).

    `whole`: components that it leaves whole.
    """
    dense: Placements = (("dp_shard_cp", Shard(0)),)
    stored = choice.stored
    buffer = replace(_policy("buffer", (), "fp32", replace(choice, compute="fp32", on_host=False)), pad_storage=False)
    factors = replace(_policy("factors", (), stored, replace(choice, compute=stored, on_host=False)), pad_storage=False)
    rules = [Rule(lambda t: t.module == "factors", factors), Rule(lambda t: t.is_buffer, buffer),
             *_rules_of_pairs(dense, choice)]
    if choice.splits_experts:
        split: Placements = (("ep", Shard(0, even=True)),)
        axis, dim = choice.experts_cut
        for wide in (1, 2) if choice.by_width else ():
            both: Placements = (*split, ("etp", Shard(wide, even=True)))
            rules.append(Rule(_is_wide_at(wide), _policy("experts, sharded, etp", (*both, (axis, Shard(dim))), stored,
                                                         choice, used=both)))
        experts = (_policy("experts, sharded", (*split, (axis, Shard(dim))), stored, choice, used=split)
                   if choice.fully else _plain_experts(split, choice))
        rules.append(Rule(lambda t: t.component == "routed_experts", experts))
    rules.append(Rule(lambda t: t.module == "adapter", _policy("adapters", dense, choice.adapters, choice)))
    if choice.packed is not None:
        rules.append(Rule(is_packed, _packed_policy(dense, choice.packed, choice)))
    rules.append(Rule(lambda t: t.component in whole, _policy("sharded", dense, stored, choice)))
    if choice.weights != choice.compute:
        rules += [Rule(_narrow(code, cut), _policy("sharded, fp8", (*cut, *dense), stored, choice, used=cut,
                                                 in_use=choice.weights)) for cut in (*tp_cuts, ())]
    for cut in tp_cuts:
        early, cut_late = _policy("sharded, tp", (*cut, *dense), stored, choice, used=cut), TRAINERS[code].cut_late
        if choice.ties_again:
            rules.append(Rule(_both(_lies_like(code, cut), _is_tied), replace(early, name="tied again", apart=True)))
        rules += [Rule(_both(_lies_like(code, cut), cut_late), _with_whole_gradient(early)),
                  Rule(_lies_like(code, cut), early)]
    if OPTIMIZERS[choice.kept.name].matrix_states:
        rules.append(Rule(is_hidden_matrix, _policy(f"sharded, {choice.kept.name}", dense, stored, choice,
                                                     hidden=True)))
    rules.append(Rule(lambda t: True, _policy("sharded", dense, stored, choice)))
    return tuple(rules)


def _rules_of_pairs(dense: Placements, choice: _Choice) -> list[Rule]:
    """Rules of a reference model, and of a head whose weight the trainer gathers as it is stored."""
    head = _policy("sharded, read apart", dense, choice.stored, choice, in_use=choice.stored)
    return [Rule(lambda t: t.component == REFERENCE, _policy("sharded, reference", dense, choice.reference, choice)),
            *[Rule(lambda t: t.component == "lm_head" and t.module != "adapter", head)] * choice.head_apart]


def _narrow(code: str, cut: Placements) -> Matches:
    """A linear of a block that torchao converts, cut so; torchtitan's filter leaves the output alone."""
    return lambda spec: (spec.module == "linear" and spec.component != "lm_head"
                         and (not cut or TRAINERS[code].tp_layout(spec) == cut))


def _is_tied(spec: TensorSpec) -> bool:
    return spec.tied


def _is_wide_at(dim: int) -> Matches:
    """Experts, [experts, out, in], whose width is dimension `dim`."""
    return lambda spec: spec.component == "routed_experts" and spec.dims[dim:dim + 1] == ("expert_ffn",)


@lru_cache(maxsize=64)
def _tp_cuts(graph: ModelGraph) -> tuple[Placements, ...]:
    """Every way in which tensor parallelism cuts a tensor of the model."""
    tp_layout = TRAINERS[graph.implementation].tp_layout
    cuts = (tp_layout(spec) for specs in graph.tensors for spec in specs)
    return tuple(dict.fromkeys(cut for cut in cuts if cut))


def _lies_like(code: str, cut: Placements) -> Matches:
    return lambda spec: TRAINERS[code].tp_layout(spec) == cut


def _both(one: Matches, other: Matches) -> Matches:
    return lambda spec: one(spec) and other(spec)


def _with_whole_gradient(policy: TensorPolicy) -> TensorPolicy:
    return replace(policy, unreduced_grad=replace(policy.unreduced_grad, placements=(("dp_shard_cp", Partial()),)))


def _policy(name: str, placements: Placements, stored: str, choice: _Choice, used: Placements = (), *,
          hidden: bool = False, in_use: str = "") -> TensorPolicy:
    partial: Placements = (("dp_shard_cp", Partial()),)
    rest = TensorLayout(placements, stored, "host_pinned" if choice.on_host else "device")
    states = choice.kept.of(placements, stored, "host" if choice.on_host else "device", hidden=hidden)
    return TensorPolicy(name, rest, TensorLayout(used, in_use or choice.compute),
                        TensorLayout((*used, *partial), choice.compute), rest, states,
                UpdateTime.AFTER_REDUCE if choice.in_backward else UpdateTime.OPTIMIZER_STEP, pad_storage=True)


def _packed_policy(placements: Placements, packed: PackedWeights, choice: _Choice) -> TensorPolicy:
    """A column of bytes is whole on every rank, one of another type is cut."""
    policy = _policy("sharded, packed", placements, choice.stored, choice)
    if packed.storage != "uint8" or packed.is_tensor:
        return replace(policy, at_rest=TensorLayout(placements, packed.storage, policy.at_rest.space, packed=packed))
    return replace(policy, name="packed, ignored", at_rest=TensorLayout((), packed.storage, packed=packed),
                   pad_storage=False, at_rest_category="ignored_param")


def _plain_experts(split: Placements, choice: _Choice) -> TensorPolicy:
    """Local slices outside FSDP: mixed precision does not reach them, nothing reduces their gradients."""
    layout = TensorLayout(split, choice.compute)
    return TensorPolicy("experts, ignored", layout, layout, layout, layout, choice.kept.of(split, choice.compute),
                updated=UpdateTime.GRADIENT_READY if choice.in_backward else UpdateTime.OPTIMIZER_STEP,
                at_rest_category="ignored_param", unreduced_grad_category="ignored_grad")
