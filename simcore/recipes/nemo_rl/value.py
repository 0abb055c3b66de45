"""PPO: the block `ppo`, and the block `value`, a policy with a head of values, which the scenario calls its critic.

NeMo RL 7ea279ab `algorithms/ppo.py`, `models/value/lm_value.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.nemo_rl.other_model import check_alike, read_other, value_of, write_keys
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, read_rows

__all__ = ["read_ppo", "read_value"]

_AT: Final = "value"
_BLOCK: Final = "rl.critic"
_KIND: Final = "value.reward_model_cfg"
_PPO: Final = "algorithms/ppo.py"
_ALIKE: Final = {"framework": "workers of another kind than the policy's",
                 "framework_version": "another worker than the policy's",
                 "training.precision": "other formats than the policy's",
                 "training.optimizer": "another optimizer than the policy's",
                 "training.offload": "another place on the host than the policy's",
                 "environment": "another allocator than the policy's"}
_NEVER: Final = {"training.method": "adapters of a value model", "training.frozen": "frozen parts of a value model"}
_NAMES: Final = {"model": f"{_BLOCK}.model", "implementation": f"{_BLOCK}.implementation",
                 "training.sequence_parallel": f"{_BLOCK}.sequence_parallel",
                 "training.micro_batch_size": f"{_BLOCK}.micro_batch_size",
                 "training.global_batch_size": f"{_BLOCK}.global_batch_size",
                 "training.recompute": f"{_BLOCK}.recompute",
                 "rl.logprob_batch_size": f"{_BLOCK}.values_batch_size"}
_ROWS: Final = (
    Says("ppo.num_prompts_per_step", "rl.prompts"),
    Says("ppo.num_generations_per_prompt", "rl.generations"),
    Says("ppo.ppo_epochs", "rl.epochs"),
    Off("ppo.use_dynamic_sampling", "prompts that are answered and not kept, in PPO"),
    Idle(("ppo.dynamic_sampling_max_gen_batches", "ppo.batch_multiplier"), "prompts are drawn once"),
    Idle(("ppo.policy_training_start_step",), "the first steps of a run, in which the critic trains alone"),
    Idle(("ppo.val_*", "ppo.max_val_samples"), "validation: not part of a step"),
    Idle(("ppo.reward_*", "ppo.adv_estimator.*", "ppo.overlong_filtering", "ppo.seq_logprob_error_threshold"),
         "a number for each sequence or token"),
    Idle(tuple(f"ppo.{name}" for name in ("max_num_epochs", "max_num_steps", "seed")),
         "length of the run, and its seed"),
    Idle(("ppo.async_ppo", "ppo.async_ppo.*"), "settings of what is switched off"),
    Idle(("loss_fn.*", "value_loss_fn.*"), "which loss of log-probabilities, and of values"),
)


def read_ppo(reader: Reader, draft: Draft) -> None:
    """Reads the block of the step, and those of its losses."""
    skips = reader.flag("ppo.skip_reference_policy_logprobs_calculation")
    penalty = reader.number("loss_fn.reference_policy_kl_penalty")
    passes = skips is not None and not skips.value
    if not passes and penalty is not None and penalty.value:
        draft.fail(penalty.where, "skip_reference_policy_logprobs_calculation is set, and "
                   f"loss_fn.reference_policy_kl_penalty is {penalty.value:g}, not 0 [NeMo RL 7ea279ab {_PPO}:1242]")
    draft.infer("rl.reference", "host" if passes else "none", "log-probabilities of the reference policy are made"
                if passes else "the reference policy's pass is skipped; its copy on the host is not counted", skips,
                penalty, source=f"{_PPO}:1546")
    _read_asynchronous(reader, draft)
    read_switches(reader, draft, {"ppo.max_rollout_turns": "a sequence is counted as one answer of full length"})
    read_rows(reader, draft, _ROWS)


def _read_asynchronous(reader: Reader, draft: Draft) -> None:
    """Writes that engines generate while both models train."""
    switch = reader.flag("ppo.async_ppo.enabled")
    if switch is None or not switch.value:
        draft.idle(switch, "the default")
        return
    draft.put("rl.asynchronous", switch)
    draft.unmodelled(reader.matching("ppo.async_ppo.in_flight_weight_updates",
                                     "ppo.async_ppo.max_trajectory_age_steps"),
                     "engines decode the sequences of one step while the models train on those of the step before")
    draft.unmodelled(reader.matching("ppo.async_ppo.recompute_kv_cache_after_weight_updates"),
                     "caches are not computed again")
    draft.idle(reader.matching("ppo.async_ppo.warmup_*", "ppo.async_ppo.drop_*"), "the first steps of a run")


def read_value(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    """Writes the block `rl.critic`, whose model shares the `gpus` that train."""
    found = read_other(reader, draft, gpus, _AT, without="reward_model_cfg")
    if found is None:
        return
    _read_kind(reader, draft)
    check_alike(draft, found, _AT, _ALIKE, _NEVER)
    write_keys(draft, found, _AT, _BLOCK, _NAMES)
    micro = value_of(found.values, "training.micro_batch_size")
    if not value_of(found.values, "rl.logprob_batch_size") and micro:
        draft.infer(f"{_BLOCK}.values_batch_size", micro, "value.train_micro_batch_size, as there is no "
                    "logprob_batch_size", source="models/value/workers/megatron_value_worker.py get_values")


def _read_kind(reader: Reader, draft: Draft) -> None:
    """Kind of the head: workers of DTensor ask for a regression, and take no packs; Megatron's always have one."""
    on, kind = reader.flag(f"{_KIND}.enabled"), reader.text(f"{_KIND}.reward_model_type")
    draft.use(on, kind, why="a value model has a head of values")
    if reader.look(f"{_AT}.megatron_cfg.enabled") is True:
        return
    if on is None or not on.value or kind is None or kind.value != "regression":
        draft.fail(reader.document.where((_AT, "reward_model_cfg")), f"{_KIND}: expected enabled true and "
                   "reward_model_type regression [NeMo RL 7ea279ab models/value/workers/dtensor_value_worker_v2.py]")
    if reader.look(f"{_AT}.sequence_packing.enabled") is True:
        draft.fail(reader.document.where((_AT, "sequence_packing", "enabled")), f"{_AT}.sequence_packing: Sequence "
                   "packing is not supported for reward models [NeMo RL 7ea279ab models/automodel/setup.py]")
