"""Trainers of verl that no scenario can say: reinforcement learning, generation, evaluation.

A step of the workload grpo is that of NeMo RL's workers, which bring the policy to the host while the engine generates.
verl's workers do otherwise: `actor.fsdp_config.param_offload` and `optimizer_offload` decide it, false by default; the
reference policy is a model of its own (`ref.fsdp_config`); weights reach the engine layer by layer
(`rollout.layered_summon`), and it may free its weights while it sleeps (`rollout.free_cache_engine`). An answer by the
other workers' phases would be wrong by whole copies of the model.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["refuse_trainer"]

_STRATEGY: Final = "actor_rollout_ref.actor.strategy"
_ENGINES: Final = {"megatron": "Megatron", "fsdp2": "FSDP2", "fsdp": "FSDP"}


def refuse_trainer(reader: Reader, draft: Draft, trainer: str) -> None:
    """Refuses a trainer by its name, with the algorithm and engines that the recipe asks for."""
    first = next((one.key for one in reader.all() if one.path[0] == "actor_rollout_ref"), "defaults")
    taken = reader.take("hydra.trainer") or reader.take(first)
    if "main_ppo" in trainer or "actor_rollout_ref" in reader.names():
        draft.refuse(taken, f"{_algorithm(reader)} by verl's workers ({_engine(reader)}): when they keep parameters on "
                            "the device is not described (served: NeMo RL's workers)", always=True)
    else:
        draft.refuse(taken, f"the trainer {trainer} (read: verl.trainer.fsdp_sft_trainer)", always=True)
    draft.idle(reader.matching("*"), "of a recipe that is refused")


def _algorithm(reader: Reader) -> str:
    said = reader.look("algorithm.adv_estimator")
    return f"{str(said).upper():.40}" if isinstance(said, str) and said != "gae" else "PPO"


def _engine(reader: Reader) -> str:
    """Engines of actor and rollout, as far as the recipe says them."""
    said = reader.look(_STRATEGY)
    actor = _ENGINES.get(str(said), "Megatron" if reader.names("actor_rollout_ref.actor.megatron") else "FSDP")
    rollout = reader.look("actor_rollout_ref.rollout.name")
    return f"{actor} and {rollout if isinstance(rollout, str) else 'vllm'}"
