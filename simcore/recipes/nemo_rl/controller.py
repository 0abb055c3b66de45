"""The block `async_rl`: a single controller, which trains on groups of answers as they come while engines generate.

NeMo RL 7ea279ab `algorithms/single_controller.py`, `single_controller_utils/config.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Unmodelled, read_rows

__all__ = ["has_controller", "read_controller"]

_AT: Final = "async_rl"
_CONFIG: Final = "NeMo RL 7ea279ab algorithms/single_controller_utils/config.py"
_AHEAD: Final = {"in_order": "max_lookahead_versions", "windowed": "max_staleness_versions",
                 "ready_first": "max_staleness_versions", "weight_fifo": "max_staleness_versions"}
"""Key that says how far generation may run ahead of training, by sampler; 1 by default."""
_GROUPS: Final = 32
"""Default of min_groups_for_streaming_train."""
_ROWS: Final = (
    Unmodelled((f"{_AT}.recompute_kv_cache_after_weight_updates",), "caches are not computed again", (None, False)),
    Idle((f"{_AT}.sampler.sample_freshest_first", f"{_AT}.max_inflight_prompts", f"{_AT}.max_buffered_rollouts"),
         "which answers are trained on, and how many wait"),
    Idle((f"{_AT}.rollout_failure.*", f"{_AT}.stall_watchdog.*", f"{_AT}.generation_fleet_health.*",
          f"{_AT}.generation_router.*", f"{_AT}.diagnostics"), "failures, and what is watched"),
)


def has_controller(reader: Reader) -> bool:
    """True if a single controller runs the step."""
    return reader.is_mapping(_AT)


def read_controller(reader: Reader, draft: Draft) -> None:
    """Writes if engines generate meanwhile, and the parts of a step; checks what the release checks."""
    sampler = reader.text(f"{_AT}.sampler.name")
    ahead = reader.integer(f"{_AT}.sampler.{_AHEAD.get(sampler.value if sampler else '', '')}")
    if sampler is None or sampler.value not in _AHEAD:
        draft.refuse(sampler, "another sampler than NeMo RL's")
    elif ahead is not None and ahead.value == 0:
        draft.infer("rl.asynchronous", value=False, rule="generation waits for training", where=ahead.where)
        draft.use(sampler, ahead)
    else:
        draft.infer("rl.asynchronous", value=True, rule="generation runs ahead of training", where=sampler.where,
                    source=_CONFIG)
        draft.use(sampler, ahead)
    _read_parts(reader, draft)
    _check(reader, draft)
    read_rows(reader, draft, _ROWS)


def _read_parts(reader: Reader, draft: Draft) -> None:
    """Writes the parts of a step: at least as many groups are waited for as the recipe says."""
    least, prompts = reader.integer(f"{_AT}.min_groups_for_streaming_train"), reader.look("grpo.num_prompts_per_step")
    groups = least.value if least is not None else _GROUPS
    if not isinstance(prompts, int) or groups < 1:
        draft.use(least)
    elif groups > prompts:
        draft.fail(least.where if least else draft.path, f"grpo.num_prompts_per_step ({prompts}) must be >= "
                   f"{_AT}.min_groups_for_streaming_train ({groups}) [{_CONFIG}]")
        draft.use(least)
    else:
        draft.infer("rl.chunks", -(-prompts // groups), "num_prompts_per_step over min_groups_for_streaming_train",
                    least, source="algorithms/single_controller.py _train_pump")


def _check(reader: Reader, draft: Draft) -> None:
    """Refuses engines on the GPUs that train, and records several optimizer steps, which the release refuses."""
    shares = reader.look("policy.generation.colocated.enabled")
    if shares is not False:
        where = reader.document.where(("policy", "generation", "colocated", "enabled"))
        draft.refused.append(Problem(where, "not yet: a single controller with engines on the GPUs that train"))
    prompts, each, batch = (reader.look(key) for key in (
        "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"))
    if isinstance(prompts, int) and isinstance(each, int) and isinstance(batch, int) and prompts * each != batch:
        draft.fail(reader.document.where(("policy", "train_global_batch_size")), f"num_prompts_per_step * "
                   f"num_generations_per_prompt ({prompts * each}) must equal policy.train_global_batch_size ({batch}) "
                   f"[{_CONFIG}]")
