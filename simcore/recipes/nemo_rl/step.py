"""Step of an algorithm: blocks `sft`, `dpo`, `grpo` and `loss_fn`."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.switches import read_switches
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Says, read_rows

__all__ = ["read_step"]

_GRPO: Final = (
    Says("grpo.num_prompts_per_step", "rl.prompts"),
    Says("grpo.num_generations_per_prompt", "rl.generations"),
    Idle(("grpo.use_combined_training", "grpo.combined_training_*", "grpo.use_best_at_k", "grpo.best_at_k_*",
          "grpo.dynamic_sampling_oversample_ratio"), "no line of the release reads it"),
    Idle(("grpo.async_grpo", "grpo.async_grpo.*"), "settings of what is switched off"),
    Idle(("grpo.val_*", "grpo.max_val_samples", "grpo.stop_at_validation_*", "grpo.num_val_*"),
         "validation: not part of a step"),
    Idle(("grpo.reward_*", "grpo.adv_estimator.*", "grpo.normalize_rewards", "grpo.use_leave_one_out_baseline",
          "grpo.advantage_clip_*", "grpo.overlong_filtering", "grpo.invalid_tool_call_*", "grpo.malformed_*",
          "grpo.penalize_*", "grpo.calculate_advantages_on_gpu", "grpo.zero_variance_prompt_filtering",
          "grpo.seq_logprob_error_threshold"), "a number for each sequence or token"),
    Idle(("grpo.deduplicate_multimodal_data",), "inputs of other kinds than text"),
    Idle(("grpo.debug_payload_metrics",), "what is logged"),
    Idle(("grpo.skip_reference_policy_logprobs_calculation",), "loss_fn.reference_policy_kl_penalty decides"),
    Idle(("loss_fn.*",), "which loss of log-probabilities"),
    Idle(("on_policy_distillation",), "off"),
)
_ENGINE: Final = "policy.generation.vllm_cfg.async_engine"
_CORRECTED: Final = "loss_fn.use_importance_sampling_correction"
_JUDGES: Final = ("nodes of judges beside those of cluster.num_nodes (docs/cluster.md:163): their GPUs, and the time "
                  "of rewards, are in no number")
_LENGTH: Final = Idle(tuple(f"{kind}.{name}" for kind in ("sft", "dpo", "grpo")
                            for name in ("max_num_epochs", "max_num_steps", "seed")), "length of the run, and its seed")
_LATER: Final = Idle(tuple(f"{kind}.{name}" for kind in ("sft", "dpo") for name in (
    "val_at_start", "val_at_end", "val_period", "only_unmask_final")), "when validation runs, and which tokens count")
_DPO: Final = (
    Idle(("dpo.val_batches", "dpo.val_global_batch_size", "dpo.val_micro_batch_size"), "validation under dpo is not "
         "simulated: it has fewer tensors than a step"),
    Idle(("dpo.reference_policy_kl_penalty", "dpo.preference_*", "dpo.sft_*"), "weights of the loss"),
)


def read_step(reader: Reader, draft: Draft, kind: str, *, validates: bool) -> None:
    """Reads the block of the algorithm `kind`, and the block of its loss.

    `validates`: the validation of SFT is simulated with the recipe's worker.
    """
    read_rows(reader, draft, (_LENGTH,))
    if kind == "sft":
        _read_evaluation(reader, draft, validates=validates)
    read_rows(reader, draft, (_LATER,))
    colocated = draft.values.get("generation", {}).get("colocated", True)
    away = reader.flag("policy.offload_optimizer_for_logprob")
    if away is not None and away.value and kind == "grpo" and not colocated and not _makes_passes(reader):
        draft.idle(away, "no log-probabilities are made (loss_fn.force_on_policy_ratio, and no penalty)")
    elif away is not None and away.value and kind == "grpo" and not colocated:
        draft.put("rl.optimizer_offload", away)
    else:
        draft.idle(away, "off, or states left the device before weights were sent to the engine"
                   if kind in ("grpo", "ppo") else "only passes of GRPO read it (prepare_for_lp_inference)")
    if kind == "dpo":
        read_rows(reader, draft, _DPO)
    if kind == "grpo":
        _read_grpo(reader, draft)


def _makes_passes(reader: Reader) -> bool:
    """True if log-probabilities of the policy or of a reference policy are made (algorithms/grpo.py:3210)."""
    penalty = reader.look("loss_fn.reference_policy_kl_penalty")
    skips = (reader.look("loss_fn.force_on_policy_ratio") is True
             and reader.look("grpo.seq_logprob_error_threshold") is None)
    return not skips or (isinstance(penalty, int | float) and penalty > 0)


def _read_evaluation(reader: Reader, draft: Draft, *, validates: bool) -> None:
    """Writes the validation of SFT, unless none is asked for (a period of 0 or less, and not at start or end)."""
    period, ends = reader.integer("sft.val_period"), [reader.flag(f"sft.val_at_{end}") for end in ("start", "end")]
    runs = (period is not None and period.value > 0) or any(one is not None and one.value for one in ends)
    draft.idle([one for one in (period, *ends) if one], "when validation runs")
    micro, batches, whole = (reader.integer(f"sft.{name}") for name in (
        "val_micro_batch_size", "val_batches", "val_global_batch_size"))
    if not runs or micro is None or not validates:
        why = "validation under megatron is not simulated" if runs else "no validation is asked for"
        draft.idle([one for one in (micro, batches, whole) if one], why)
        return
    draft.put("evaluation.micro_batch_size", micro)
    if batches is not None and whole is not None and batches.value > 0:
        draft.infer("evaluation.sequences", batches.value * whole.value, "val_batches of val_global_batch_size",
                    batches, whole, source="algorithms/sft.py validate")
    else:
        draft.idle([one for one in (batches, whole) if one], "all of the validation set: one pass is counted")


def _read_grpo(reader: Reader, draft: Draft) -> None:
    penalty = reader.number("loss_fn.reference_policy_kl_penalty")
    if penalty is not None and penalty.value > 0:
        draft.infer("rl.reference", "host", "a reference policy is kept where its penalty is above 0", penalty,
                    source="algorithms/grpo.py init_reference_model")
    else:
        draft.infer("rl.reference", "none", "no reference policy without a penalty", penalty,
                    source="algorithms/grpo.py init_reference_model")
    ratio = reader.flag("loss_fn.force_on_policy_ratio")
    if ratio is not None and ratio.value and reader.look("grpo.seq_logprob_error_threshold") is None:
        draft.put("rl.on_policy_ratio", ratio)
    else:
        draft.idle(ratio, "the pass of log-probabilities runs: " + (
            "grpo.seq_logprob_error_threshold asks for it" if ratio and ratio.value else "the default"))
    distils = reader.matching("on_policy_distillation.*")
    if any(one.path[-1] == "enabled" and one.value for one in distils):
        for one in distils:
            draft.refuse(one, "distillation of teachers in GRPO")
    else:
        draft.idle(distils, "off")
    _read_asynchronous(reader, draft)
    _read_drawn(reader, draft)
    _refuse_rewards(reader, draft)
    read_switches(reader, draft, {"grpo.max_rollout_turns": "a sequence is counted as one answer of full length"})
    read_rows(reader, draft, _GRPO)


def _read_asynchronous(reader: Reader, draft: Draft) -> None:
    """Writes that engines generate while the policy trains; what upstream asserts of such a run is asked of the recipe.

    algorithms/grpo.py async_grpo_train. With updates in flight sequences that are not complete go on with new weights.
    """
    switch = reader.flag("grpo.async_grpo.enabled")
    if switch is None or not switch.value:
        draft.idle(switch, "the default")
        return
    draft.put("rl.asynchronous", switch)
    corrected = reader.flag(_CORRECTED)
    draft.use(corrected, why="asynchronous GRPO asks for it")
    for key, said, rule in ((_ENGINE, reader.flag(_ENGINE), "Async GRPO requires an async vLLM engine"),
                            (_CORRECTED, corrected, "Importance sampling correction must be enabled for async GRPO")):
        if said is None or not said.value:
            if key == _ENGINE and reader.look("policy.generation.backend") not in (None, "vllm"):
                continue  # another engine, which is refused by its name
            draft.fail(said.where if said else switch.where, f"{key} is not true, and grpo.async_grpo.enabled is "
                       f"[{rule}, NeMo RL 7ea279ab algorithms/grpo.py async_grpo_train]")
    ahead = reader.integer("grpo.async_grpo.max_trajectory_age_steps")
    if ahead is not None and ahead.value > 1:
        draft.put("rl.steps_ahead", ahead)
    else:
        draft.idle(ahead, "the default")
    draft.unmodelled(reader.matching("grpo.async_grpo.in_flight_weight_updates"),
                     "engines decode while the policy trains, and go on when its weights have arrived")
    draft.unmodelled(reader.matching("grpo.async_grpo.recompute_kv_cache_after_weight_updates"),
                     "caches are not computed again")
    draft.idle(reader.matching("grpo.async_grpo.max_generation_failures"), "failures that are waited for")


def _read_drawn(reader: Reader, draft: Draft) -> None:
    """Writes the prompts that dynamic sampling has answered for those that it keeps (algorithms/grpo.py:567).

    Batches are drawn until enough prompts have rewards that differ: one is counted.
    """
    switch, times = reader.flag("grpo.use_dynamic_sampling"), reader.number("grpo.batch_multiplier")
    most = reader.integer("grpo.dynamic_sampling_max_gen_batches")
    if switch is None or not switch.value:
        draft.idle([one for one in (switch, most) if one], "prompts are drawn once")
        if times is not None and times.value != 1:
            draft.fail(times.where, "batch_multiplier>1 can only be used if use_dynamic_sampling=True [NeMo RL "
                       "7ea279ab algorithms/grpo.py:571]")
            draft.use(times)
        else:
            draft.idle(times, "the default")
        return
    draft.unmodelled(most, "one batch of prompts is answered in a step: further ones take the time of generation again")
    kept = reader.look("grpo.num_prompts_per_step")
    if isinstance(kept, int):
        draft.infer("rl.generated_prompts", int(kept * (times.value if times is not None else 1)), "batch_multiplier "
                    "times num_prompts_per_step", switch, times, source="algorithms/grpo.py:567")
    else:
        draft.use(switch, times)


def _refuse_rewards(reader: Reader, draft: Draft) -> None:
    """Refuses rewards by a model: it takes GPUs of the cluster (algorithms/grpo.py setup, rm_env_enabled).

    Judges of NeMo Gym have nodes beside `cluster.num_nodes` (docs/cluster.md:163): the number only keeps the gym's
    actor on the driver's node (environments/nemo_gym.py:1210).
    """
    for one in reader.all():
        names = one.value if isinstance(one.value, list) else [one.value]
        if one.key == "env.nemo_gym.num_gpu_nodes":
            judges = reader.take(one.key)
            draft.unmodelled(judges if one.value else None, _JUDGES)
            draft.idle(judges if not one.value else None, "no judges on GPUs")
        if one.path[0] == "data" and one.path[-1] == "env_name" and "reward_model" in names:
            draft.refuse(reader.take(one.key), "rewards by a model that takes GPUs of the cluster")
