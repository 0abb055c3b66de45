"""Models beside the policy of OpenRLHF's PPO, reference model, critic and reward model, and its vLLM."""

from __future__ import annotations

from typing import Final

from simcore.inputs.yaml_parser import dotted
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.named_model import ask_for_model
from simcore.recipes.openrlhf.sft import said
from simcore.recipes.openrlhf.strategy import RELEASE
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_engine", "read_models"]

_CLI: Final = "cli/train_ppo_ray.py"
_ESTIMATORS: Final = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")
_GROUPS: Final = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators whose baseline is made of several answers to a prompt."""


def read_models(reader: Reader, draft: Draft) -> None:
    """Writes the models beside the policy, which are read where all share its GPUs."""
    shared, estimator = _flag(reader, "train.colocate_all"), reader.text("algo.advantage.estimator")
    kind = estimator.value if estimator else "gae"
    if kind not in _ESTIMATORS:
        draft.use(estimator)
        where = estimator.where if estimator else draft.path
        draft.fail(where, f"argument --algo.advantage.estimator: invalid choice: {kind!r} (choose from "
                          f"{', '.join(_ESTIMATORS)}; {RELEASE} {_CLI})")
    draft.use(estimator, why="which has a critic if it is gae")
    answers = reader.integer("rollout.n_samples_per_prompt")
    if kind in _GROUPS and (answers is None or answers.value < 2):
        draft.fail(answers.where if answers else draft.path, f"{kind} requires n_samples_per_prompt > 1 ({RELEASE} "
                                                             f"{_CLI})")
    _read_reference(reader, draft, shared)
    _read_scored(reader, draft, shared, kind)
    sleeps = reader.flag("ds.enable_sleep")
    away = reader.look("ds.adam_offload")
    if sleeps is not None and sleeps.value and not away:
        draft.put("rl.optimizer_offload", sleeps)
    else:
        draft.idle(sleeps, "an optimizer on the host does not sleep" if away else "the default")
    _use_placement(reader, draft)


def _flag(reader: Reader, key: str) -> Taken[bool] | None:
    taken = reader.flag(key)
    return taken if taken is not None and taken.value else None


def _read_reference(reader: Reader, draft: Draft, shared: Taken[bool] | None) -> None:
    weight, beside = reader.number("algo.kl.init_coef"), _flag(reader, "train.colocate_actor_ref")
    away = _flag(reader, "ref.offload")
    if weight is not None and weight.value <= 0:
        draft.put("rl.reference", weight, "none")
        draft.idle([one for one in (away, beside) if one is not None], "of a reference model that is not there")
        return
    if shared is None and beside is None:
        draft.fail(weight.where if weight else draft.path, "not yet: a reference model on GPUs of its own (read: "
                   "train.colocate_actor_ref, train.colocate_all)")
        draft.use(weight, away)
        return
    draft.use(beside, why="the reference model is on the policy's GPUs")
    draft.infer("rl.reference", "host" if away else "device", "algo.kl.init_coef is above 0", weight, away,
                source=f"{RELEASE} {_CLI}")


def _read_scored(reader: Reader, draft: Draft, shared: Taken[bool] | None, kind: str) -> None:
    """Writes critic and reward model: a model for each, or none where rewards come from elsewhere."""
    reward, url = reader.text("reward.model_name_or_path"), reader.take("reward.remote_url")
    critic, agent = reader.text("critic.model_name_or_path"), reader.look("train.agent_func_path")
    elsewhere = url is not None or agent is not None
    if not elsewhere and reward is None:
        draft.fail(draft.path, f"neither reward.model_name_or_path nor reward.remote_url: nothing scores ({RELEASE} "
                               "trainer/ppo_utils/experience_maker.py)")
    draft.idle(url, "rewards come from a function or a server, on the CPU or elsewhere")
    named = critic or (None if elsewhere else reward)
    if kind == "gae":
        _read_model(draft, "critic", named, shared, of_policy=named is None)
    else:
        draft.idle(critic, f"{kind} has no critic")
    if elsewhere:
        draft.idle(reward, "rewards come from elsewhere")
    elif reward is not None:
        _read_model(draft, "reward", reward, shared, of_policy=False)


def _read_model(draft: Draft, name: str, named: Taken[str] | None, shared: Taken[bool] | None, *,
                of_policy: bool) -> None:
    if shared is None:
        draft.use(named)
        draft.fail(named.where if named else draft.path, f"not yet: a {name} model on GPUs of its own (read: "
                                                         "train.colocate_all)")
        return
    if of_policy:
        draft.infer(f"rl.{name}", {}, "the policy's model", source=f"{RELEASE} {_CLI}")
    elif named is not None and not ask_for_model(draft, named, dotted(named.path), f"rl.{name}.model"):
        draft.put(f"rl.{name}.model", named)


def _use_placement(reader: Reader, draft: Draft) -> None:
    """Tells ranks of other models, which are the policy's where they share its GPUs."""
    for name in ("ref", "reward", "critic"):
        for part in ("num_nodes", "num_gpus_per_node"):
            draft.idle(reader.integer(f"{name}.{part}"), "as the policy's, or of a model that is not there")
    draft.idle(reader.flag("train.colocate_critic_reward"), "read where not all models share GPUs")
    draft.idle(reader.flag("reward.offload"), "of a model that is not there, or whose part ZeRO 3 alone moves")


def read_engine(reader: Reader, draft: Draft) -> None:
    """Writes the block of vLLM."""
    shared, sleeps = _flag(reader, "train.colocate_all"), reader.flag("vllm.enable_sleep")
    count, tp = reader.integer("vllm.num_engines"), reader.integer("vllm.tensor_parallel_size")
    if count is None or count.value < 1:
        draft.idle([one for one in (shared, sleeps, tp) if one is not None], "of an engine that is not there")
        draft.refuse(count, "generation without vLLM")
        if count is None:
            draft.fail(draft.path, "not yet: generation without vLLM (vllm.num_engines)")
        return
    said(draft, "generation.tp", tp, 1)
    size, ranks = count.value * (tp.value if tp else 1), draft.answers.gpus
    if shared is None:
        draft.infer("generation.colocated", value=False, rule="without train.colocate_all", source=f"{RELEASE} {_CLI}")
        draft.put("generation.engines", count)
        draft.idle(sleeps, "vllm.enable_sleep is off without train.colocate_all")
    else:
        draft.use(shared, why="all models share GPUs")
        draft.use(count, why="engines on the policy's GPUs")
        if ranks is not None and size != ranks.value and not reader.look("train.async_enable"):
            draft.fail(count.where, "actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
                                    f"vllm_tensor_parallel_size, got {ranks.value} and {size} ({RELEASE} {_CLI})")
        level = int(sleeps is not None and sleeps.value)
        if sleeps is not None:
            draft.put("generation.sleep_level", sleeps, level)
        else:
            draft.default("generation.sleep_level", 0, RELEASE, _CLI)
    said(draft, "generation.gpu_memory_utilization", reader.number("vllm.gpu_memory_utilization"), 0.95)
    for name, key in (("enforce_eager", "enforce_eager"), ("enable_prefix_caching", "prefix_caching")):
        taken = reader.flag(f"vllm.{name}")
        said(draft, f"generation.{key}", taken, default=False)
    draft.idle([one for name in ("sync_backend", "sync_with_ray") if (one := reader.take(f"vllm.{name}")) is not None],
               "how handles or parameters are sent; on shared GPUs handles are, by nccl")
