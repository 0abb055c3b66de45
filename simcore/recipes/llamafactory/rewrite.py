"""Recipes of LLaMA-Factory's rewrite (`USE_V1=1 llamafactory-cli sft`): its own loop around `fully_shard` or DDP.

[Note: the rewrite] ff6d4d12 `src/llamafactory/v1`. Trained in full, the model is cast to fp32 (`core/model_engine.py`)
and stays so: `bf16` is the policy of FSDP 2 alone (`plugins/trainer_plugins/distributed/fsdp2.py`: parameters in bf16,
reductions in fp32), and without FSDP products are in fp32. The root reshards too. The trainer asks the model for its
loss, which it does not use, and computes its own (`core/base_trainer.py`, compute_log_probs).
"""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import copy_to_ranks
from simcore.recipes.huggingface.attention import read_attention
from simcore.recipes.huggingface.fsdp import share_ranks
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Row, read_rows

__all__ = ["FIELDS", "read_rewrite"]

FIELDS: Final = frozenset({
    "model", "custom_chat_template", "trust_remote_code", "flash_attn", "model_class", "init_config", "peft_config",
    "kernel_config", "quant_config", "train_dataset", "eval_dataset", "output_dir", "micro_batch_size",
    "global_batch_size", "cutoff_len", "learning_rate", "num_train_epochs", "max_steps", "max_grad_norm", "bf16",
    "batching_strategy", "batching_workers", "enable_activation_checkpointing", "dist_config", "dp_size", "cp_size",
    "cp_mode", "mp_replicate_size", "mp_shard_size", "dist_timeout", "optim_config", "lr_scheduler_config", "seed",
    "full_determinism", "resume_from_checkpoint", "save_steps", "save_epochs", "save_ckpt_as_hf", "save_total_limit",
    "logging_steps", "pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha",
    "sample_backend", "max_new_tokens"})
"""Keys of its recipes (`v1/config/*_args.py`); others are an error there."""
_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_FSDP: Final = f"{_RELEASE} v1/plugins/trainer_plugins/distributed/fsdp2.py"
_TRAINER: Final = f"{_RELEASE} v1/core/base_trainer.py"
_ENGINE: Final = f"{_RELEASE} v1/core/model_engine.py"
_BATCHES: Final = f"{_RELEASE} v1/plugins/trainer_plugins/batching.py"
_ARGUMENTS: Final = "v1/config/training_args.py"
_ROWS: Final[tuple[Row, ...]] = (
    Idle(("train_dataset", "eval_dataset", "custom_chat_template"), "which samples are read, and their tokens"),
    Idle(("output_dir", "save_*", "resume_from_checkpoint", "logging_steps", "sample_backend", "max_new_tokens"),
         "files, logging and inference: not part of a step"),
    Idle(("learning_rate", "lr_scheduler_config", "lr_scheduler_config.*", "num_train_epochs", "max_steps", "seed",
          "full_determinism", "max_grad_norm"), "numbers of the update, and how long the run is"),
    Idle(("batching_workers", "dist_timeout", "init_config", "init_config.*"), "start of the run and its data"),
    Idle(("pref_*", "simpo_gamma", "dpo_label_smoothing", "ld_alpha"), "read by `llamafactory-cli dpo` alone"),
    Idle(("cp_mode",), "sequences are not split"),
)


def read_rewrite(reader: Reader, draft: Draft) -> None:
    """Writes the scenario of a recipe that `llamafactory-cli sft` trains; what is not served is refused by name."""
    read_machine(draft, None)
    read_named_model(reader, draft, "model")
    read_remote_code(reader, draft, "trust_remote_code")
    read_attention(draft, attention := reader.text("flash_attn"), attention.value if attention else "")
    _refuse_others(reader, draft)
    draft.default("implementation", "hf", _RELEASE, f"{_ENGINE}: AutoModelForCausalLM")
    if not _read_fsdp(reader, draft):
        copy_to_ranks(draft)
    checkpoints = reader.flag("enable_activation_checkpointing")
    if checkpoints is None:
        draft.default("training.recompute", "full", _RELEASE, _ARGUMENTS)
    else:
        draft.put("training.recompute", checkpoints, "full" if checkpoints.value else "none")
    draft.default("training.precision.params", "fp32", _RELEASE, f"{_ENGINE}: model.to(torch.float32)")
    draft.default("training.loss", "log_probs", _RELEASE, f"{_TRAINER} compute_log_probs")
    draft.default("training.optimizer", {"name": "adamw", "implementation": "foreach"}, _RELEASE,
                  f"{_TRAINER} _init_optimizer: torch.optim.AdamW")
    _read_lengths(reader, draft)
    _read_batch(reader, draft)
    read_rows(reader, draft, _ROWS)


def _refuse_others(reader: Reader, draft: Draft) -> None:
    """Refuses blocks that ask for other layers, methods, optimizers or axes."""
    kind = reader.text("model_class")
    if kind is not None and kind.value != "llm":
        draft.refuse(kind, f"a model of the class {kind.value}")
    else:
        draft.idle(kind, "the default")
    for block, what in (("peft_config", "a part of the parameters"), ("quant_config", "a packed base"),
                        ("optim_config", "the optimizer")):
        _refuse_block(reader, draft, block, what)
    kernels = reader.text("kernel_config.name")
    if kernels is not None and kernels.value != "auto":
        draft.refuse(kernels, f"kernels of LLaMA-Factory's own: {kernels.value}")
    else:
        draft.idle(kernels, "`auto` has none for a GPU, but for NPUs (v1/plugins/model_plugins/kernels/interface.py)")
    draft.idle(reader.matching("kernel_config", "kernel_config.*"), "of kernels")


def _read_context(reader: Reader, draft: Draft, name: Taken[str]) -> Taken[int] | None:
    """Writes ranks that share sequences (Ulysses), and returns their degree; None for one rank."""
    split, mode = reader.integer("cp_size"), reader.text("cp_mode")
    if split is None or split.value == 1:
        draft.idle([one for one in (split, mode) if one is not None], "sequences are not split")
        return None
    said = draft.values.get("framework_options", {}).get("attn_implementation")
    if said != "flash_attention_2":
        draft.fail(split.where, "Sequence parallelism requires flash attention. Please set `flash_attn: "
                                f"flash_attention_2` ({_TRAINER})")
    if mode is not None and mode.value != "ulysses":
        draft.refuse(mode, f"sequences that are split by {mode.value}")
    else:
        draft.use(mode, why="exchanges around attention")
    draft.put("mesh.cp", split)
    draft.use(name)
    return split


def _refuse_block(reader: Reader, draft: Draft, block: str, what: str) -> None:
    name = reader.text(f"{block}.name")
    if name is not None:
        draft.refuse(name, f"{what} by {name.value}")
    draft.idle(reader.matching(block, f"{block}.*"), "of a block that is refused" if name else "nothing is asked for")


def _read_fsdp(reader: Reader, draft: Draft) -> bool:
    """Writes FSDP 2 and its mesh, where the recipe asks for it; False where each GPU has a copy."""
    name, half = reader.text("dist_config.name"), reader.flag("bf16")
    sizes = {key: reader.integer(key) for key in ("dp_size", "mp_replicate_size", "mp_shard_size")}
    if name is None or name.value != "fsdp2":
        draft.refuse(name, f"ranks that {name.value if name else ''} splits")
        draft.idle(reader.matching("dist_config", "dist_config.*"), "of a block that is refused, or of none")
        draft.idle([one for one in sizes.values() if one], "each GPU has the whole model")
        split = reader.integer("cp_size")
        if split is not None and split.value > 1:
            draft.refuse(split, "sequences that are split over ranks without FSDP 2", always=True)
        else:
            draft.idle(split, "one rank")
        draft.infer("framework", "ddp", "no dist_config is said", source=f"{_TRAINER} _shard_model")
        draft.idle(half, "the policy of FSDP 2 alone: nothing is cast here")
        draft.default("training.precision.compute", "fp32", _RELEASE, f"{_ENGINE}: model.to(torch.float32)")
        return False
    draft.infer("framework", "fsdp2", "dist_config", name, source=_FSDP)
    _check_tied(draft, name)
    draft.idle(sizes["dp_size"], "all ranks, or groups of them that share samples, read samples of their own")
    split = _read_context(reader, draft, name)
    share_ranks(reader, draft, "mp_replicate_size", "" if split else "mp_shard_size", split)
    draft.use(sizes["mp_shard_size"] if split else None, why="must be the GPUs over copies of the shards")
    compute = "bf16" if half is None or half.value else "fp32"
    if half is None:
        draft.default("training.precision.compute", compute, _RELEASE, _ARGUMENTS)
    else:
        draft.put("training.precision.compute", half, compute)
    draft.default("training.precision.grad_reduce", "fp32", _RELEASE, f"{_FSDP} get_mp_policy")
    reshard = reader.flag("dist_config.reshard_after_forward")
    if reshard is None:
        draft.default("framework_options.reshard_after_forward", value=True, release=_RELEASE, source=_FSDP)
    else:
        draft.put("framework_options.reshard_after_forward", reshard)
    draft.default("framework_options.sync_gradients", "every", _RELEASE, f"{_TRAINER} fit")
    draft.default("framework_options.recompute_by", "transformers", _RELEASE, _TRAINER)
    _read_offload(reader, draft)
    draft.idle(reader.matching("dist_config.dcp_path"), "files at the start of the run")
    return True


def _read_offload(reader: Reader, draft: Draft) -> None:
    offload, pinned = reader.flag("dist_config.offload_params"), reader.flag("dist_config.pin_memory")
    if offload is not None and offload.value:
        for part in ("params", "gradients", "optimizer"):
            draft.infer(f"training.offload.{part}", "host", "offload_params moves all three", offload)
    else:
        draft.idle(offload, "the default")
    if pinned is not None and not pinned.value:
        draft.refuse(pinned, "parameters in memory of the host that is not pinned")
    else:
        draft.idle(pinned, "the default")


def _check_tied(draft: Draft, name: Taken[str]) -> None:
    """Refuses a model with a head of its own: its embedding is a unit, and the root keeps the head."""
    try:
        model = draft.answers.settings.get("model") or draft.values.get("model")
        fields = model_config(str(model.get("config") if isinstance(model, dict) else model), None, "")
    except InputError:
        return
    if not fields.get("tie_word_embeddings"):
        draft.fail(name.where, "not yet: an embedding that is a unit of its own beside a root with the head "
                               f"({_FSDP} prepare_model)")


def _read_lengths(reader: Reader, draft: Draft) -> None:
    """Writes rows and microbatch: padded to the longest, or one row of all samples of a microbatch."""
    limit, micro, strategy = (reader.integer("cutoff_len"), reader.integer("micro_batch_size"),
                              reader.text("batching_strategy"))
    length, rows = limit.value if limit else 2048, micro.value if micro else 1
    answer = draft.answers.seq_len
    if answer is not None:
        draft.idle(limit, f"{answer.where} says how long samples are")
        length = answer.value
    is_row = strategy is not None and strategy.value in ("padding_free", "dynamic_padding_free")
    size = length * rows if is_row else length
    if strategy is not None and strategy.value == "padding_free" and draft.values.get("framework_options", {}).get(
            "attn_implementation") != "flash_attention_2":
        draft.fail(strategy.where, f"`padding_free` requires `flash_attn: flash_attention_2` ({_TRAINER})")
    if answer is not None:
        draft.answered("training.seq_len", answer, size)
    elif limit is None and size == length:
        draft.default("training.seq_len", size, _RELEASE, _ARGUMENTS)
    else:
        draft.infer("training.seq_len", size, "samples of cutoff_len x micro_batch_size in one row" if is_row else
                    "the longest that cutoff_len allows", limit, micro if is_row else None, source=_BATCHES)
    if is_row:
        draft.infer("training.lengths", "packed", "one row without padding", strategy, source=_BATCHES)
        if rows > 1:
            draft.infer("training.packed_length", length, "the longest sample", None if answer else limit,
                        source=_BATCHES)
        draft.infer("training.micro_batch_size", 1, "one row a microbatch", micro, source=_BATCHES)
    else:
        draft.use(strategy, why="microbatches of as many tokens, padding too, as cutoff_len x micro_batch_size")
        _write_micro(draft, micro)


def _write_micro(draft: Draft, micro: Taken[int] | None) -> None:
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    else:
        draft.default("training.micro_batch_size", 1, _RELEASE, _ARGUMENTS)


def _read_batch(reader: Reader, draft: Draft) -> None:
    """Writes rows of a step, one microbatch a rank where nothing is said."""
    whole, mesh = reader.integer("global_batch_size"), draft.values.get("mesh", {})
    if whole is None:
        return
    packed = draft.values.get("training", {}).get("lengths") == "packed"
    micro = reader.look("micro_batch_size") if packed else 1
    if not isinstance(micro, int) or not mesh:
        draft.use(whole, why="samples of a step of so many ranks as are asked for")
    else:
        draft.infer("training.global_batch_size", whole.value // micro, "samples of a step, in rows", whole,
                    source=f"{_RELEASE} v1/core/utils/batching.py")
