"""Release of TRL by which a recipe of GRPO is read: the newest that has all of its arguments, of those simulated.

[Note: which release] An argument that TRL 1.16.0 has not tells an older one. Of these: 0.27.2 where an argument came
with 0.25 or later; 0.24.0 where one came with 0.20 or later, or none tells more; 0.19.1 with `generation_kwargs`, which
came with it; 0.18.0 with arguments of open-r1's script, which pins it (huggingface/open-r1 setup.py). Defaults are
those of `trainer/grpo_config.py` of the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.frameworks.trl_releases import Release as Step
from simcore.frameworks.trl_releases import release_of
from simcore.recipes.trl.grpo.defaults import MIDDLE, NEWEST, Release

__all__ = ["OF_REWARDS", "OLDER_NAMES", "OLDEST_NAMES", "Turn", "turn_of"]

OLDER_NAMES: Final = frozenset({
    "max_prompt_length", "vllm_guided_decoding_regex", "use_liger_loss", "wandb_log_unique_prompts"})
"""Arguments of GRPO that ended between 0.18 and 1.16.0."""
OLDEST_NAMES: Final = ("vllm_device", "vllm_dtype", "vllm_max_model_len", "vllm_enable_prefix_caching",
                       "ref_model_init_kwargs")
"""Arguments that ended with 0.17, when vLLM was not on GPUs that train, or that GRPO never had."""
_OF_0_25: Final = frozenset({
    "cast_lm_head_to_fp32", "chat_template_kwargs", "num_generations_eval", "vllm_max_model_length",
    "sapo_temperature_neg", "sapo_temperature_pos", "vllm_importance_sampling_mode", "use_bias_correction_kl",
    "log_unique_prompts", "vllm_structured_outputs_regex", "vllm_group_port", "multi_objective_aggregation",
    "max_tool_calling_iterations", "off_policy_mask_threshold"})
_OF_0_20: Final = frozenset({
    "use_transformers_paged", "importance_sampling_level", "top_entropy_quantile", "vllm_model_impl",
    "vllm_enable_sleep_mode", "vllm_importance_sampling_correction", "vllm_importance_sampling_cap"})
_OF_0_19: Final = frozenset({"generation_kwargs"})
OF_REWARDS: Final = frozenset({
    "dataset_prompt_column", "cosine_min_value_wrong", "cosine_max_value_wrong", "cosine_min_value_correct",
    "cosine_max_value_correct", "cosine_max_len", "repetition_n_grams", "repetition_max_penalty", "code_language",
    "code_eval_test_batch_size", "code_eval_scoring_mode", "parallel_code_exec_per_proc", "code_provider",
    "ioi_provider", "e2b_router_url", "morph_router_url", "max_completion_len", "soft_punish_cache"})
"""Arguments of GRPO that open-r1's script adds: its prompts, and functions that give rewards (GRPOScriptArguments)."""
_OF_OPEN_R1: Final = frozenset({
    *OF_REWARDS, "system_prompt", "dataset_mixture", "benchmarks", "callbacks", "hub_model_revision",
    "overwrite_hub_revision", "push_to_hub_revision", "wandb_entity", "wandb_project", "wandb_run_group"})
"""Arguments of open-r1 src/open_r1/configs.py."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Defaults of GRPO in a release of TRL: `release` of what all trainings share, `step` of what GRPO does.

    `beta`: weight of the divergence; `mode`: of vLLM; `cut`: tokens at which prompts are cut, 0: none; `answer`: most
    tokens of an answer. `swaps_loss`: Liger's own loss of GRPO runs with Liger's layers.
    """

    release: Release
    step: Step
    beta: float = 0.0
    mode: str = "server"
    cut: int = 0
    answer: int = 256
    swaps_loss: bool = False

    @property
    def name(self) -> str:
        """Name of the release."""
        return self.release.name


def _old(name: str, trainer: str, *, mixes: bool = True) -> Release:
    return Release(f"TRL {name}", trainer, recomputes=False, cuts_logits=False, optimizer="adamw_torch",
                   narrow_adapters=False, mixes=mixes)


_NEWEST: Final = Turn(NEWEST, release_of("auto"), mode="colocate", answer=512)
_OF_27: Final = Turn(Release("TRL 0.27.2", MIDDLE.trainer, recomputes=True, cuts_logits=False,
                             optimizer=MIDDLE.optimizer, narrow_adapters=False), release_of("0.27.2"), swaps_loss=True)
_OF_24: Final = Turn(MIDDLE, release_of("0.24.0"), cut=512)
_OF_19: Final = Turn(_old("0.19.1", "transformers 4.53.0"), release_of("0.19.1"), cut=512)
_OF_18: Final = Turn(_old("0.18.0", "transformers 4.52.3", mixes=False), release_of("0.18.0"), beta=0.04, cut=512)


def turn_of(names: frozenset[str], older: frozenset[str]) -> Turn:
    """The release by which a recipe with these top-level `names` is read, see [Note: which release].

    `older`: arguments of transformers' Trainer and of TRL that no newer release has.
    """
    if names.isdisjoint(OLDER_NAMES | older):
        return _NEWEST
    for told, found in ((_OF_0_25, _OF_27), (_OF_0_20, _OF_24), (_OF_0_19, _OF_19), (_OF_OPEN_R1, _OF_18)):
        if not names.isdisjoint(told):
            return found
    return _OF_24
