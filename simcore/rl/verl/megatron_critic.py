"""The critic of verl's PPO over Megatron: its phases of a step, beside the actor in the actor's processes.

[Note: verl's critic over Megatron]
verl b178a3cd `workers/megatron_workers.py:987` CriticWorker, `workers/critic/megatron_critic.py`. A model with
mbridge's LinearForLastLayer in the place of its head (mbridge 0.15.1 `utils/layer.py`), in Megatron's DDP. It shares
the actor's process and its groups: model parallelism is set up once, by the worker that is made first, the actor's.
Values are made after the log-probabilities (`trainer/ppo/ray_trainer.py` fit), in microbatches as large as those that
train; then it is trained, before the actor. With param_offload its parameters are on the host but for both, and its
gradients are freed with them; with optimizer_offload main parameters and moments are there but for its training. As
with the actor, main parameters that the precision-aware optimizer holds stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.hardware.topology import Topology
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import CRITIC, STEPS, away, back, outside
from simcore.rl.step.policy import Critic

__all__ = ["add_critic", "critic_bytes", "train_critic"]

_GRADS: Final = f"{CRITIC}, gradients"
_MAIN: Final = "main_param"


def critic_bytes(critic: Critic) -> int:
    """Bytes on the device when an engine starts: moments are made by the first step."""
    model = critic.model
    held = {name: size for name, size in model.fixed.items() if not (critic.offloads_states and name == _MAIN)}
    main = 0 if critic.offloads_states else model.states.get(_MAIN, 0)
    moving = 0 if critic.offloads_params else sum(model.params.values()) + sum(model.grads.values())
    return sum(model.outside.values()) + sum(held.values()) + main + moving


def add_critic(journal: Journal, critic: Critic) -> None:
    """Adds the critic as the previous step left it."""
    model = critic.model
    for sizes in (outside(model.outside), model.fixed, model.params, model.states):
        journal.put(CRITIC, sizes)
    if critic.offloads_params:
        journal.move(CRITIC, "device", "host", model.params)
    else:
        journal.put(_GRADS, model.grads)
    if critic.offloads_states:
        journal.move(CRITIC, "device", "host", _moved(critic))


def _moved(critic: Critic) -> Mapping[str, int]:
    """Main parameters and moments that move: not main parameters among the states."""
    model = critic.model
    fixed = {name: size for name, size in model.fixed.items() if name == _MAIN}
    return {**fixed, **{name: size for name, size in model.states.items() if name != _MAIN}}


def train_critic(journal: Journal, critic: Critic, topology: Topology) -> None:
    """Adds the phase in which the critic is trained."""
    journal.begin("critic")
    model = critic.model
    if critic.offloads_params:
        back(journal, model.params, topology, CRITIC)
    else:
        journal.drop(_GRADS, "device")  # they are among the training step's own
    if critic.offloads_states:
        back(journal, _moved(critic), topology, CRITIC)
    journal.spike(CRITIC, model.training, "training step", {STEPS: model.training_ns})
    if critic.offloads_params:
        away(journal, model.params, topology, CRITIC)
    else:
        journal.put(_GRADS, model.grads)
    if critic.offloads_states:
        away(journal, _moved(critic), topology, CRITIC)
