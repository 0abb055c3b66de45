"""PPO as NeMo RL runs it: the phases of a step with a policy and a critic that take turns on the same GPUs.

[Note: the order of PPO]
NeMo RL main of 2026-08-22 (7ea279ab) `algorithms/ppo.py` ppo_train. The critic's workers (`models/value/workers/`) are
processes of their own on the GPUs that train. Refit and generation are GRPO's (`phases.py`); engines on GPUs of their
own get the weights, and all of the policy goes to the host (offload_to_cpu). Then the critic's parameters come, make
values and leave (prepare_for_inference, finish_inference), the policy's come, make log-probabilities and leave. In each
of `ppo_epochs` rounds the critic's parameters and states come, it trains, and they leave (finish_training), then the
policy's come and it trains; between rounds it leaves too, after the last it stays until the next refit.
"""

from __future__ import annotations

from simcore.hardware.topology import Topology
from simcore.rl.step.critic import add_critic, make_values, train_critic
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import GrpoStep, away, back, refer, sample, score, start, train
from simcore.rl.step.policy import Policy

__all__ = ["ppo_step"]


def ppo_step(policy: Policy, step: GrpoStep, topology: Topology, epochs: int) -> Journal:
    """Memory and time of a steady step of PPO on one class of ranks; rounds of training are one phase for each model.

    "refit", "generation", "values", "logprob", "reference" (if the step has it), "critic", "training": see
    [Note: the order of PPO]. `epochs`: rounds.
    """
    critic = step.critic
    assert critic is not None
    journal = start(policy, has_reference=step.has_reference)
    add_critic(journal, critic)
    sample(journal, policy, step, topology)
    make_values(journal, critic, topology)
    journal.begin("logprob")
    back(journal, policy.params, topology)
    score(journal, policy)
    if step.has_reference:
        refer(journal, policy, topology)
    away(journal, policy.params, topology)
    train_critic(journal, critic, topology, epochs)
    journal.begin("training")
    for again in range(epochs):
        back(journal, policy.params, topology)
        back(journal, policy.states, topology)
        if not again:
            train(journal, policy)
        if again < epochs - 1:
            away(journal, policy.params, topology)
            away(journal, policy.states, topology)
    return journal
