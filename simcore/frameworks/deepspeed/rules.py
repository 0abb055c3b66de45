"""Rules of the tensors of a model under the stages of ZeRO: the layouts of each in every state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.frameworks.common.qlora import is_packed
from simcore.frameworks.deepspeed.split.matrices import cut_of
from simcore.frameworks.deepspeed.states.low_bit import StateForm
from simcore.frameworks.deepspeed.states.muon import is_muons
from simcore.frameworks.deepspeed.strategy import PERSISTENT
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Matches, Rule, TensorPolicy, UpdateTime
from simcore.placement.layout import Flat, Partial, Placements, TensorLayout
from simcore.recording.number_formats import PackedWeights

__all__ = ["Choice", "lies_like", "rules_of"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings that tensor policies depend on, apart from the tensor itself.

    `stage`: 1, 2 or 3; `axis`: mesh axis over which ZeRO cuts; `stored`: dtype of parameters. `threshold`: elements of
    a rank's part of the matrices (all of it without tp) up to which ZeRO-3 keeps a parameter gathered. `kept`: the
    optimizer's states, "" for their space where masters lie. `spaces`: of states and of parameters, without pinning:
    pinned memory is in flat buffers, which `simcore/frameworks/deepspeed/offload_buffers.py` counts. `packed`: format
    of packed weights, or None.
    `apart`: gradients have no bucket. `tp`: ranks that share matrices; `cuts`: every way in which they cut one.
    `of_matrices`: states of matrices in place of `kept`, if Muon updates them.
    """

    stage: int
    axis: str
    stored: str
    threshold: int
    kept: tuple[StateForm, ...]
    spaces: tuple[str, str]
    packed: PackedWeights | None
    apart: bool
    tp: int
    cuts: tuple[Placements, ...]
    of_matrices: tuple[StateForm, ...] = ()


@lru_cache(maxsize=64)
def rules_of(choice: Choice) -> tuple[Rule, ...]:
    """Returns the rules that give each tensor its layouts; the first one that matches a tensor counts.

    16-bit parameters and gradients, fp32 masters, and moments in fp32 unless `kept` says another format; gradients on
    the host are fp32 too.
    """
    fp32, packed = TensorLayout((), "fp32"), choice.packed
    buffer = TensorPolicy("buffer", fp32, fp32, fp32, fp32, at_rest_category="buffer", updated=UpdateTime.NEVER)
    rules = [Rule(lambda t: t.is_buffer, buffer)]
    if packed is not None:
        rules += [Rule(lambda t: is_packed(t) and choice.stage == 3 and packed.rows(t.numel) <= choice.threshold,
                       _in_bits(PERSISTENT, choice, packed)),
                  Rule(is_packed, _in_bits("packed", choice, packed))]
    if choice.of_matrices:
        rules.append(Rule(is_muons, _policy("partitioned, Muon's", replace(choice, kept=choice.of_matrices))))
    for cut in (*choice.cuts, ()):
        rules += [Rule(_small(choice, cut), _policy(PERSISTENT, choice, cut)),
                  Rule(lies_like(cut), _policy("partitioned, tp" if cut else "partitioned", choice, cut))]
    return tuple(rules)


def lies_like(cut: Placements) -> Matches:
    """Returns a function that is True for tensors that AutoTP cuts so; `()`: for all, as the last rule."""
    return lambda spec: not cut or cut_of(spec) == cut


def _small(choice: Choice, cut: Placements) -> Matches:
    parts, lies_so = choice.tp if cut else 1, lies_like(cut)

    def matches(spec: TensorSpec) -> bool:
        return choice.stage == 3 and spec.numel // parts <= choice.threshold and lies_so(spec)

    return matches


def _policy(name: str, choice: Choice, cut: Placements = ()) -> TensorPolicy:
    """Policy of a tensor that ranks of tp cut so, before ZeRO cuts what is left."""
    stage, stored, (away, of_params) = choice.stage, choice.stored, choice.spaces
    states_away = away != "device"
    unsharded = TensorLayout(cut, stored)
    part: Placements = (*cut, (choice.axis, Flat("tensor" if stage == 3 else "group")))
    states = tuple((name, TensorLayout(part, dtype, space or away)) for name, dtype, space in (
        ("master_param", "fp32", ""), *choice.kept))
    rest = TensorLayout(part, stored, of_params) if stage == 3 else unsharded
    grad = TensorLayout(part, stored)
    if states_away:
        grad = TensorLayout(part, stored if stage == 3 else "fp32", "host")
        states += (("grad_copy", TensorLayout(part, "fp32", "host")),) * (stage == 3 and away == "host")
    return TensorPolicy(name, rest, unsharded, TensorLayout((*cut, (choice.axis, Partial())), stored), grad, states,
                        grads_persist=stage == 3 and not states_away,
                        unreduced_grad_category="unsharded_grad" if stage == 1 or choice.apart else "")


def _in_bits(name: str, choice: Choice, packed: PackedWeights) -> TensorPolicy:
    policy = _policy(name, choice)
    return replace(policy, at_rest=replace(policy.at_rest, dtype=packed.storage, packed=packed))
