"""The actor of verl's reinforcement learning over FSDP: model, optimizer, and its loss. How it is shared: `sharding`.

Defaults are those of verl b178a3cd `trainer/config/_generated_ppo_trainer.yaml`; code: `workers/fsdp_workers.py`.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.modules import family_of, write_targets
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows
from simcore.recipes.verl.formats import FORMATS
from simcore.recipes.verl.sharding import ACTOR, is_second, read_mixed, read_sharding

__all__ = ["ACTOR", "MODEL", "RELEASE", "ROWS", "WORKERS", "read_actor", "read_recompute", "read_stored", "refuse_said",
           "said"]

RELEASE: Final = "verl b178a3cd"
WORKERS: Final = "workers/fsdp_workers.py"
_YAML: Final = "trainer/config/_generated_ppo_trainer.yaml"
MODEL: Final = "actor_rollout_ref.model"
_FSDP: Final = f"{ACTOR}.fsdp_config"
_LEARNED: Final = ("gpt2", "mpt")
"""Families with a table of learned positions."""
_OVERRIDE: Final = f"{MODEL}.override_config"
_DROPOUTS: Final = ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop")
"""Fields that are shares of numbers which are dropped; of a configuration without one nothing reads it."""
ROWS: Final = (
    Idle((f"{_FSDP}.grad_offload",), "a key of releases up to 0.2: gradients are freed behind each step"),
    Says(f"{_FSDP}.dtype", "", "text", idle={"bfloat16": "as it is simulated", "bf16": "as it is simulated"},
         words={None: None}, what="gathered parameters in"),
    Says(f"{ACTOR}.optim.optimizer", "training.optimizer.name", "text", {"AdamW": "adamw", "Adam": "adam"},
         what="optimizer"),
    Says(f"{ACTOR}.optim.optimizer_impl", "", "text", idle={"torch.optim": "the default"}, words={None: None},
         what="an optimizer of"),
    Says(f"{ACTOR}.ppo_epochs", "", idle={1: "one pass over a step's sequences"}, words={None: None},
         what="passes over a step's sequences:"),
    Idle((f"{MODEL}.lora.*",), "adapters of workers over Megatron"),
    Off(f"{MODEL}.use_liger", "Liger's kernels in verl's actor"),
    Off(f"{MODEL}.enable_activation_offload", "activations on the host"),
    Off(f"{MODEL}.tiled_mlp.enabled", "an MLP in tiles"),
    Idle((f"{MODEL}.tiled_mlp.num_shards",), "read with tiled_mlp.enabled alone"),
    Off(f"{MODEL}.mtp.enable", "multi-token prediction"),
    Idle((f"{MODEL}.mtp.*",), "read with mtp.enable alone"),
    Off(f"{ACTOR}.calculate_entropy", "an entropy that is kept and not in the loss"),
    Off(f"{ACTOR}.calculate_sum_pi_squared", "sums of squared probabilities"),
    Off(f"{ACTOR}.use_prefix_grouper", "prompts that sequences share"),
    Unmodelled((f"{MODEL}.external_lib",), "code that is imported before the model is made", (None,)),
    Idle((f"{_FSDP}.seed", f"{_FSDP}.full_determinism", f"{_FSDP}.use_torch_compile",
          f"{_FSDP}.ulysses_sequence_parallel_size", f"{_FSDP}.entropy_*", f"{_FSDP}.strategy",
          f"{_FSDP}.forward_only"), "of verl's newer workers, or values"),
    Unmodelled((f"{ACTOR}.optim.override_optimizer_config", f"{ACTOR}.optim.override_optimizer_config.*"),
               "arguments of the optimizer are those of torch's defaults", (None,)),
    Idle((f"{ACTOR}.optim.*",), "values, not tensors"),
    Idle((f"{ACTOR}.clip_ratio*", f"{ACTOR}.policy_loss.*", f"{ACTOR}.loss_agg_mode", f"{ACTOR}.kl_loss_*",
          f"{ACTOR}.loss_scale_factor", f"{ACTOR}.tau_*", f"{ACTOR}.grad_clip", f"{ACTOR}.sum_pi_squared_*"),
         "numbers of a token's loss"),
    Idle((f"{ACTOR}.rollout_n",), "answers of a prompt, which rollout.n says"),
    Idle((f"{ACTOR}.shuffle", f"{ACTOR}.data_loader_seed"), "the order of sequences"),
    Idle((f"{ACTOR}.checkpoint.*", f"{ACTOR}.profiler.*", f"{ACTOR}.router_replay.*"), "the run around the steps"),
    Idle((f"{MODEL}.torch_dtype",), "no line of the release reads it"),
    Idle((f"{MODEL}.use_shm", f"{MODEL}.tokenizer_path", f"{MODEL}.hf_config_path", f"{MODEL}.custom_chat_template"),
         "from where files are read"),
)


def said(draft: Draft, key: str, taken: Taken[Any] | None, value: Any) -> None:
    """Writes a key that the recipe says, or else the release's default."""
    if taken is not None:
        draft.put(key, taken, value)
    else:
        draft.default(key, value, RELEASE, _YAML)


def refuse_said(reader: Reader, draft: Draft, key: str, what: str) -> None:
    """Refuses a key that has a value of any kind; null is the default."""
    taken = reader.take(key)
    if taken is not None and taken.value is not None:
        draft.refuse(taken, what)
    else:
        draft.idle(taken, "the default")


def read_stored(reader: Reader, draft: Draft, block: str, key: str) -> None:
    """Writes the format in which parameters rest to `key`; `block`: settings of FSDP of an actor or a critic."""
    stored = reader.text(f"{block}.model_dtype")
    if stored is not None and stored.value not in FORMATS:
        draft.refuse(stored, f"parameters in {stored.value}")
    else:
        said(draft, key, stored, FORMATS[stored.value] if stored else "fp32")


def read_recompute(reader: Reader, draft: Draft, block: str, key: str) -> None:
    """Writes to `key` whether layers are recomputed, which is the default; `block`: of an actor's or critic's model."""
    checkpoints = reader.flag(f"{block}.enable_gradient_checkpointing")
    said(draft, key, checkpoints, "none" if checkpoints and not checkpoints.value else "full")


def read_actor(reader: Reader, draft: Draft) -> None:
    """Writes what the actor is: everything of it but the sizes of batches."""
    read_named_model(reader, draft, f"{MODEL}.path")
    read_remote_code(reader, draft, f"{MODEL}.trust_remote_code")
    draft.default("implementation", "hf", RELEASE, f"{WORKERS}: AutoModelForCausalLM")
    draft.default("framework_options.sync_gradients", "every", RELEASE, f"{WORKERS}: nothing sets gradients to wait")
    read_mixed(reader, draft, _FSDP, "training.precision.grad_reduce")
    read_stored(reader, draft, _FSDP, "training.precision.params")
    read_recompute(reader, draft, MODEL, "training.recompute")
    _read_loss(reader, draft)
    _read_attention(reader, draft)
    read_sharding(reader, draft)
    refuse_said(reader, draft, f"{MODEL}.lora_adapter_path", "adapters that are read from files")
    _read_adapters(reader, draft)
    read_rows(reader, draft, ROWS)


def _read_loss(reader: Reader, draft: Draft) -> None:
    """Writes how log-probabilities and entropies are made of logits.

    verl b178a3cd `workers/actor/dp_actor.py:73`: compiled or not; with a coefficient backward passes through the
    entropy, and the cross entropy keeps its logits.
    """
    if _reads_fused(reader, draft):
        return
    coefficient, compiled = reader.number(f"{ACTOR}.entropy_coeff"), reader.flag(f"{ACTOR}.use_torch_compile")
    packed = reader.flag(f"{MODEL}.use_remove_padding")
    has, is_eager = bool(coefficient and coefficient.value), bool(compiled and not compiled.value)
    is_padded = bool(packed and not packed.value)
    if is_padded and packed is not None and (reader.look(f"{ACTOR}.ulysses_sequence_parallel_size") or 1) > 1:
        draft.fail(packed.where, "When using sequence parallelism for actor/ref policy, you must enable "
                   f"`use_remove_padding` ({RELEASE} workers/config/actor.py)")
    if is_padded and has:
        draft.refuse(coefficient, "an entropy in the loss of padded rows")
        coefficient = None
    loss = "flash_padded" if is_padded else f"flash{'_entropy' * has}{'_eager' * is_eager}"
    draft.infer("training.loss", loss, "log-probabilities by flash-attn's cross entropy, in place; an entropy that has "
                "a coefficient is in the loss", coefficient, compiled, packed,
                source="verl b178a3cd workers/actor/dp_actor.py _forward_micro_batch")
    for name, what in (("entropy_checkpointing", "an entropy that is made again in backward"),
                       ("entropy_from_logits_with_chunking", "an entropy in chunks")):
        switch = reader.flag(f"{ACTOR}.{name}")
        if switch is not None and switch.value and (has or ((is_eager or is_padded) and "chunking" in name)):
            draft.refuse(switch, what)
        else:
            draft.idle(switch, "the entropy is compiled and without gradients" if switch and switch.value else "off")


def _reads_fused(reader: Reader, draft: Draft) -> bool:
    """True if the head scores tokens itself, in chunks of logits, which is written then."""
    model, actor = (reader.flag(f"{block}.use_fused_kernels") for block in (MODEL, ACTOR))
    flags = [flag for flag in (model, actor) if flag]
    backend = reader.text(f"{MODEL}.fused_kernel_options.impl_backend")
    asked = [flag for flag in flags if flag.value]
    if actor is not None and actor.value != bool(model and model.value):  # left out, the actor's follows the model's
        draft.refuse(asked[0], "a model and an actor of which one alone has fused kernels "
                     "(workers/fsdp_workers.py:768)")
        draft.idle([flag for flag in flags if flag not in asked], "off")
        draft.idle(backend, "read with use_fused_kernels alone")
        return False
    if not asked:
        draft.idle([*flags, *([backend] if backend else [])], "off, or read with use_fused_kernels alone")
        return False
    coefficient, packed = reader.number(f"{ACTOR}.entropy_coeff"), reader.flag(f"{MODEL}.use_remove_padding")
    draft.infer("training.loss", "fused_linear", "the head scores tokens in chunks of logits", *asked,
                source="verl b178a3cd utils/experimental/torch_functional.py FusedLinearForPPO")
    for taken, is_other, what in (
            (backend, backend is not None and backend.value != "torch", "a head that scores tokens by Triton"),
            (coefficient, bool(coefficient and coefficient.value), "an entropy in the loss of such a head"),
            (packed, packed is not None and not packed.value, "padded rows of a head that scores tokens")):
        if is_other:
            draft.refuse(taken, what)
        else:
            draft.idle(taken, "the default")
    for name in ("use_torch_compile", "entropy_checkpointing", "entropy_from_logits_with_chunking"):
        draft.idle(reader.flag(f"{ACTOR}.{name}"), "the head makes the entropy")
    return True


def _read_adapters(reader: Reader, draft: Draft) -> None:
    """LoRA of PEFT, in fp32: each matrix is a unit (verl b178a3cd `utils/fsdp_utils.py:100` lambda_policy_fn)."""
    rank, alpha = reader.integer(f"{MODEL}.lora_rank"), reader.number(f"{MODEL}.lora_alpha")
    named, excluded = reader.words(f"{MODEL}.target_modules"), reader.take(f"{MODEL}.exclude_modules")
    if rank is None or rank.value < 1:
        draft.idle([one for one in (rank, alpha, named, excluded) if one], "no adapters: the rank is 0")
        return
    draft.infer("training.method", "lora", "lora_rank is above 0", rank)
    draft.put("training.lora.rank", rank)
    said(draft, "training.lora.alpha", alpha, alpha.value if alpha else 16)
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if not write_targets(draft, named, family):
        draft.use(named)
        draft.refused.append(Problem(rank.where, f"not yet: {MODEL}.target_modules: all linear layers of the family "
                                                 f"{family or 'that is not known'}"))
    if excluded is not None and excluded.value is not None:
        draft.refuse(excluded, "modules without adapters by a pattern")
    else:
        draft.idle(excluded, "the default")
    draft.default("training.lora.dtype", "fp32", RELEASE, f"{WORKERS}: PEFT's get_peft_model, autocast_adapter_dtype")
    if not is_second(reader):
        draft.default("framework_options.wrap", "layers_adapters", RELEASE, "utils/fsdp_utils.py get_fsdp_wrap_policy")


def _read_attention(reader: Reader, draft: Draft) -> None:
    named = reader.text(f"{_OVERRIDE}.attn_implementation")
    said(draft, "framework_options.attn_implementation", named, named.value if named else "flash_attention_2")
    names = reader.names(_OVERRIDE)
    rotates = family_of(draft.answers.settings.get("model") or draft.values.get("model")) not in _LEARNED
    for name in (name for name in names if name not in ("attn_implementation", *_DROPOUTS)):
        taken = reader.take(f"{_OVERRIDE}.{name}")
        if name == "max_position_embeddings" and rotates:
            draft.idle(taken, "positions are rotated: no tensor is as long")
        else:
            draft.refuse(taken, "a field of the model's configuration")
    for dropout in (reader.number(f"{_OVERRIDE}.{name}") for name in _DROPOUTS):
        if dropout is not None and dropout.value:
            what = "attention" if str(dropout.path[-1]).startswith("att") else "hidden states"
            draft.refuse(dropout, f"dropout of {what}")
        else:
            draft.idle(dropout, "no dropout")
    draft.idle(reader.take(_OVERRIDE) if not names else None, "nothing is overridden")
