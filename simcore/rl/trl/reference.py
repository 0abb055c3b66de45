"""The reference model beside TRL's policy: a second model on every rank, or the policy without its adapters.

[Note: the reference model]
TRL 1.16.0 `trainer/grpo_trainer.py`:1184, `models/utils.py`. There is none with `beta` 0; with adapters the policy
passes with these off. Else a second model is read in the policy's type, and stays on the device. DeepSpeed
(prepare_deepspeed): whole on every rank (stage 0) but under ZeRO 3, which shards it as the policy. FSDP 1
(prepare_fsdp): in the policy's units. FSDP 2: `fully_shard` of the model alone, so that all of it is one unit, which is
gathered whole before the first layer, twice in memory, and is sharded again behind the last. Without any of these:
whole on every rank.

[Note: sync_ref_model]
`trainer/callbacks.py` SyncRefModelCallback: every `ref_model_sync_steps` steps the reference takes a share of the
policy's parameters, in place. Under ZeRO 3 all parameters of both models are gathered for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcore.frameworks.trl_releases import release_of
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.rl.trl.policy import Held, summons_of, whole_bytes
from simcore.simulation.simulation import Simulation
from simcore.units import dtype_bytes

__all__ = ["Reference", "reference_of"]

_UNIT = ("unsharded_param", "all_gather_output")
"""Categories of what FSDP 2's hooks gather."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference model on one class of ranks: bytes at rest, in addition in its passes, and while it is synced.

    `within`: its passes are parts of microbatches, which have counted them and what rests.
    """

    rest: Mapping[str, int]
    passing: Mapping[str, int]
    syncing: Mapping[str, int]
    within: bool = False


def reference_of(scenario: Scenario, rl: Rl, held: Held, plan: Plan, simulation: Simulation) -> Reference | None:
    """The reference model on the ranks of a `plan`; None without one. See [Note: the reference model]."""
    if rl.reference == "none":
        return None
    within = release_of(rl.version).refers_within
    if scenario.training.method != "full":
        return Reference({}, held.passing, {}, within)
    summons = summons_of(scenario)
    rest = sum(count * _resting(placed.rest_bytes, placed.policy.at_rest.dtype, rl.reference_params)
               for kind, count in plan.kind_counts for placed in plan.kinds[kind]
               if placed.spec.is_owned and not placed.spec.is_buffer)
    both = {"unsharded_param": 2 * whole_bytes(simulation)} if rl.sync_reference and summons.whole_as else {}
    passing = _whole_unit(held, simulation) if summons.one_unit else held.passing
    return Reference({"sharded_param": rest}, passing, both, within)


def _resting(size: int, own: str, asked: str) -> int:
    """Bytes of a tensor of `size` bytes in the policy's type `own`, in the type that is `asked` for."""
    return size if asked == "auto" else size * dtype_bytes(asked) // dtype_bytes(own)


def _whole_unit(held: Held, simulation: Simulation) -> dict[str, int]:
    """Bytes of a pass of a model that is one unit of FSDP 2, at the highest layer.

    The all-gather's output stays beside what was copied out of it until the pass is over ([Note: a reference in one
    unit] in `frameworks/fsdp2/pairs/reference.py`).
    """
    whole = whole_bytes(simulation)
    return {name: size for name, size in held.passing.items() if name not in _UNIT} | dict.fromkeys(_UNIT, whole)
