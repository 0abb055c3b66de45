"""Reinforcement learning by verl over FSDP 1, FSDP 2 and Megatron with vLLM or SGLang on the same GPUs.

All else is refused by name.

`verl.trainer.main_ppo`, whose defaults are `trainer/config/_generated_ppo_trainer.yaml`. Estimators of advantages that
need no model of values (GRPO, RLOO, REINFORCE++ and others) have the same step; PPO trains a critic beside it
(`critic`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, On, Says, Unmodelled, read_rows
from simcore.recipes.verl.actor import ACTOR, RELEASE, read_actor, refuse_said
from simcore.recipes.verl.batches import read_batches, split_of
from simcore.recipes.verl.critic import has_critic, read_critic
from simcore.recipes.verl.formats import FORMATS
from simcore.recipes.verl.images import read_images
from simcore.recipes.verl.megatron import read_megatron_actor
from simcore.recipes.verl.reward import read_reward
from simcore.recipes.verl.rollout import ENGINES, read_rollout

__all__ = ["DAPO", "MAIN", "read_or_refuse"]

MAIN: Final = "verl.trainer.main_ppo"
DAPO: Final = ("recipe.dapo.main_dapo", "recipe.dapo.src.main_dapo")
"""Trainers that draw prompts again whose answers all have one reward (2bb42bae^ `recipe/dapo/dapo_ray_trainer.py`)."""
_ENGINES: Final = {"megatron": "Megatron", "fsdp2": "FSDP2", "fsdp": "FSDP", "veomni": "VeOmni"}
_UTILS: Final = "trainer/ppo/utils.py"
_REF: Final = "actor_rollout_ref.ref.fsdp_config"
_ALIKE: Final[Mapping[str, tuple[Any, ...]]] = {
    "reshard_after_forward": (True,), "wrap_policy.min_num_params": (0,), "dtype": ("bfloat16", "bf16"),
    "forward_prefetch": (False,)}
"""Settings of the reference policy, by the values that change no pass."""
_ROWS: Final = (
    Off("algorithm.rollout_correction.bypass_mode", "log-probabilities of the engine in place of the actor's"),
    Off("algorithm.use_pf_ppo", "sequences that are drawn again (PF-PPO)"),
    Idle(("algorithm.filter_groups.*",), "main_ppo does not read it"),
    Idle(("algorithm.*",), "numbers of rewards and advantages"),
    Says("trainer.device", "", "text", idle={"cuda": "the machine's own"}, words={None: None}, what="training on"),
    Says("trainer.use_legacy_worker_impl", "", "text", words={None: None},
         idle={"auto": "these workers", "enable": "these workers"}, what="workers of another kind:"),
    Idle(("trainer.*", "global_profiler.*", "ray_kwargs.*", "hydra.*"), "the run around the steps"),
    Off("transfer_queue.enable", "data that a queue carries"),
    On("actor_rollout_ref.hybrid_engine", "an engine on GPUs of its own"),
    Idle(("actor_rollout_ref.nccl_timeout",), "a limit of time"),
    Unmodelled(("data.custom_cls.*",), "prompts by a class of one's own: their longest is data.max_prompt_length",
               (None,)),
    Unmodelled(("data.datagen.*", "data.sampler.*"), "which prompts a step has", (None,)),
    Idle(("data.*",), "which prompts are read; sequences are counted at full length"),
)


def read_or_refuse(reader: Reader, draft: Draft, trainer: str) -> bool:
    """Reads a recipe of GRPO and its like; False for one that is refused by its name."""
    reason = _other(reader, trainer)
    if reason:
        first = next((one.key for one in reader.all() if one.path[0] == "actor_rollout_ref"), "defaults")
        draft.refuse(reader.take("hydra.trainer") or reader.take(first), reason, always=True)
        draft.idle(reader.matching("*"), "of a recipe that is refused")
        return False
    estimator = reader.text("algorithm.adv_estimator")
    if estimator is not None and estimator.value == "remax":
        draft.refuse(estimator, "one more answer for each prompt, in a generation of its own")
        estimator = None
    draft.infer("workload", "grpo", "a step that generates, scores and trains", estimator)
    read_machine(draft, None)
    actor = _engine(reader).partition(" and ")[0]
    gpus = _WORKERS[actor](reader, draft)
    read_images(reader, draft, by_megatron=actor == "Megatron")
    read_rollout(reader, draft)
    read_batches(reader, draft, gpus)
    read_critic(reader, draft, gpus, by_megatron=actor == "Megatron")
    read_reward(reader, draft)
    if trainer in DAPO:
        _read_generated(reader, draft)
    else:
        refuse_said(reader, draft, "data.gen_batch_size", "prompts that are generated beyond a step's (DAPO)")
    read_rows(reader, draft, _ROWS)
    return True


def _other(reader: Reader, trainer: str) -> str:
    """Reason for which a trainer is refused as a whole; "" for one that is read."""
    is_read = trainer in (MAIN, *DAPO)
    if not is_read and "actor_rollout_ref" not in reader.names():
        return f"the trainer {trainer} (read: verl.trainer.fsdp_sft_trainer, {MAIN})"
    if not is_read:
        return f"{_algorithm(reader)} by the trainer {trainer} (read: {MAIN})"
    actor, rollout = _engine(reader).split(" and ")
    if has_critic(reader) and actor not in _WORKERS:
        return (f"PPO by verl's workers over {actor} and {rollout}: its critic is not described (served: over "
                f"{' and '.join(_WORKERS)})")
    if actor not in _WORKERS or rollout not in ENGINES:
        return (f"{_algorithm(reader)} by verl's workers over {actor} and {rollout} (served: "
                f"{' or '.join(_WORKERS)}, and {' or '.join(ENGINES)})")
    if reader.look("actor_rollout_ref.hybrid_engine") is False:
        return f"{_algorithm(reader)} by verl with an engine on GPUs of its own"
    return ""


def _read_generated(reader: Reader, draft: Draft) -> None:
    """Writes the prompts that are answered for a step of DAPO's trainer, of which a step keeps some.

    recipe/dapo/dapo_ray_trainer.py fit, at 2bb42bae^: batches of `gen_batch_size` prompts are answered until enough
    have rewards that differ, here as few as hold a step. The others are scored by nothing, unless a penalty in the
    rewards asks for it.
    """
    taken, filters = reader.integer("data.gen_batch_size"), reader.flag("algorithm.filter_groups.enable")
    kept = draft.values["rl"]["prompts"]
    each = taken.value if taken is not None and taken.value > 0 else kept
    if filters is None or not filters.value:
        draft.idle(filters, "the default")
        if each != kept:
            draft.refuse(taken, "a step of all prompts that are generated, without filter_groups")
        else:
            draft.idle(taken, "the step's own")
        return
    penalty = reader.look("algorithm.use_kl_in_reward")
    if penalty:
        draft.refuse(filters, "prompts that are drawn again beside a penalty in the rewards, for which all are scored")
        draft.idle(taken, "of what is refused")
        return
    draft.infer("rl.generated_prompts", -(-kept // each) * each, "batches of gen_batch_size prompts that hold a step",
                filters, taken, source="verl 2bb42bae^ recipe/dapo/dapo_ray_trainer.py fit")


def _algorithm(reader: Reader) -> str:
    said = reader.look("algorithm.adv_estimator")
    return f"{str(said).upper():.40}" if isinstance(said, str) and said != "gae" else "PPO"


def _engine(reader: Reader) -> str:
    """Engines of actor and rollout, as far as the recipe says them."""
    said = reader.look(f"{ACTOR}.strategy")
    by_default = "Megatron" if reader.names(f"{ACTOR}.megatron") else "FSDP"
    actor = _ENGINES.get(str(said), by_default if said is None else f"{said:.40}")
    rollout = reader.look("actor_rollout_ref.rollout.name")
    return f"{actor} and {rollout if isinstance(rollout, str) else 'vllm'}"


def _read_fsdp(reader: Reader, draft: Draft) -> int:
    read_actor(reader, draft)
    gpus = _read_gpus(reader, draft)
    _read_reference(reader, draft)
    return gpus // split_of(reader)


def _read_megatron(reader: Reader, draft: Draft) -> int:
    each, nodes = reader.integer("trainer.n_gpus_per_node"), reader.integer("trainer.nnodes")
    draft.use(each, nodes)
    number = (each.value if each else 8) * (nodes.value if nodes else 1)
    said = each or nodes
    return read_megatron_actor(reader, draft, draft.answers.gpus or Answer(number, said.where if said else draft.path))


_WORKERS: Final[Mapping[str, Callable[[Reader, Draft], int]]] = {
    "FSDP": _read_fsdp, "FSDP2": _read_fsdp, "Megatron": _read_megatron}
"""Workers that are described, by the words of `_ENGINES`; each returns the number of ranks or copies with own data."""


def _read_gpus(reader: Reader, draft: Draft) -> int:
    """Writes the ranks, and returns their number: `fsdp_size` of them share a model."""
    each, nodes = reader.integer("trainer.n_gpus_per_node"), reader.integer("trainer.nnodes")
    part = reader.integer(f"{ACTOR}.fsdp_config.fsdp_size")
    answer = draft.answers.gpus
    gpus = answer.value if answer else (each.value if each else 8) * (nodes.value if nodes else 1)
    size = part.value if part is not None and 0 < part.value < gpus else gpus
    if gpus % size:
        draft.fail(part.where if part else draft.path, f"fsdp_size {size}: {gpus} GPUs are no multiple of it")
        size = gpus
    split = _read_split(reader, draft, size)
    where = answer.where if answer else ""
    rule = "all GPUs" if size == gpus else "fsdp_size"
    draft.infer("mesh.dp_shard", size // split, rule, part, each, nodes, source=f"{RELEASE} workers/fsdp_workers.py "
                "create_device_mesh", where=where)
    if size < gpus:
        draft.infer("mesh.dp_replicate", gpus // size, "all GPUs over fsdp_size", part, where=where)
    return gpus


def _read_split(reader: Reader, draft: Draft, size: int) -> int:
    """Writes the ranks that share a sequence (Ulysses), of the `size` that share a model; returns their number."""
    taken = reader.integer(f"{ACTOR}.ulysses_sequence_parallel_size")
    if taken is None or taken.value <= 1:
        draft.idle(taken, "the default")
        return 1
    if size % taken.value:
        draft.use(taken)
        draft.fail(taken.where, f"ulysses_sequence_parallel_size {taken.value}: {size} ranks are no multiple of it")
        return 1
    draft.put("mesh.cp", taken)
    return taken.value


def _read_reference(reader: Reader, draft: Draft) -> None:
    """A reference policy is there for a penalty in the rewards or in the loss; FSDP keeps it on the host."""
    switches: list[Taken[bool]] = [one for key in ("algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss")
                                   if (one := reader.flag(key)) is not None]
    has = any(one.value for one in switches)
    is_actor = draft.values["training"].get("method") == "lora"
    draft.infer("rl.reference", ("device" if is_actor else "host") if has else "none", "a penalty asks for a reference "
                "policy" if has else "no penalty", *switches, source=f"{RELEASE} {_UTILS} need_reference_policy")
    has = has and not is_actor  # with adapters the actor is its own, and reads no settings of another
    draft.refuse(reader.take("actor_rollout_ref.ref.model.path"), "another model as reference policy")
    stored = reader.text("actor_rollout_ref.ref.fsdp_config.model_dtype")
    own, actors = FORMATS.get(stored.value, stored.value) if stored else "fp32", draft.values["training"]["precision"]
    if has and own != actors["params"]:
        message = f"a reference policy in {own} beside an actor in {actors['params']}"
        draft.refused.append(Problem(stored.where if stored else draft.path,
                                     f"not yet: actor_rollout_ref.ref.fsdp_config.model_dtype: {message}"))
    draft.idle(stored, "the actor's format, or one that is refused" if has else "no reference policy")
    _read_references_units(reader, draft, has=has)


def _read_references_units(reader: Reader, draft: Draft, *, has: bool) -> None:
    """Refuses settings of FSDP by which the reference policy's passes are other than the actor's.

    `has`: there is a reference policy. workers/fsdp_workers.py _build_model_optimizer reads `ref.fsdp_config` for it.
    """
    for name, default in _ALIKE.items():
        taken = reader.take(f"{_REF}.{name}")
        if has and taken is not None and taken.value not in default:
            draft.refuse(taken, "passes of the reference policy with units of their own")
        else:
            draft.idle(taken, "the default" if has else "no reference policy")
    actors = reader.look(f"{ACTOR}.fsdp_config.reshard_after_forward")
    if has and actors is False:
        message = "an actor that does not reshard beside a reference policy that does"
        draft.refused.append(Problem(draft.path, f"not yet: {ACTOR}.fsdp_config.reshard_after_forward: {message}"))
