"""The supervised trainer over FSDP (`verl/trainer/fsdp_sft_trainer.py`), whose defaults are `sft_trainer.yaml`.

Samples are padded to `data.max_length` (`utils/dataset/sft_dataset.py`). Parameters rest in `model_dtype`, are gathered
in bf16 and reduced in fp32; nothing sets gradients to wait, so every microbatch reduces.

[Note: units] Under FSDP2 `apply_fsdp2` (`utils/fsdp_utils.py`) makes units of layers, and of the embedding where the
head is not tied to it; the head stays in the root. Under FSDP 1 layers alone are units.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.modules import family_of, write_targets
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows
from simcore.recipes.verl.formats import FORMATS
from simcore.recipes.verl.sharding import is_tied
from simcore.recipes.world import share_out

__all__ = ["SFT", "read_sft"]

SFT: Final = "verl.trainer.fsdp_sft_trainer"
_RELEASE: Final = "verl b178a3cd"
_FILE: Final = "verl/trainer/config/sft_trainer.yaml"
_TRAINER: Final = "verl/trainer/fsdp_sft_trainer.py"
_UNITS: Final = "model.fsdp_config.wrap_policy"
_ROWS: Final = (
    Says("model.fsdp_config.model_dtype", "training.precision.params", "text", FORMATS, what="parameters in"),
    Says("model.use_liger", "framework_options.use_liger_kernel", "flag"),
    Says("optim.optimizer", "training.optimizer.name", "text", {"AdamW": "adamw", "Adam": "adam"}, what="optimizer"),
    Says("optim.optimizer_impl", "", "text", idle={"torch.optim": "the default"}, words={None: None},
         what="an optimizer of"),
    Off("model.lora_adapter_path", "adapters that are read from files"),
    Idle(("hydra.*",), "the trainer, and its groups of defaults"),
    Idle(("optim.clip_grad",), "the norm is taken and gradients are multiplied whatever it says: both are timed"),
    Unmodelled(("optim.override_optimizer_config", "optim.override_optimizer_config.*"),
               "arguments of the optimizer are those of torch's defaults", (None,)),
    Idle(("optim.*",), "values, not tensors"),
    Says("trainer.device", "", "text", idle={"cuda": "the machine's own"}, words={None: None}, what="training on"),
    Idle(("trainer.nnodes", "trainer.n_gpus_per_node"), "nothing of the trainer reads it: the launcher says the ranks"),
    Idle(("trainer.test_freq",), "validation has the same batches without gradients"),
    Idle(("trainer.*",), "the run around the steps"),
    Idle(("data.micro_batch_size",), "nothing of the trainer reads it: micro_batch_size_per_gpu counts "
         "(fsdp_sft_trainer.py:155)"),
    Unmodelled(("data.balance_dp_token",), "a number of tokens that all ranks add up in each microbatch "
               "(fsdp_sft_trainer.py:460): it is not timed"),
    Unmodelled(("data.custom_cls.path",), "samples by a class of one's own: they are taken to be padded to max_length",
               (None,)),
    Says("data.pad_mode", "", "text", idle={"right": "as it is simulated"}, words={None: None}, what="samples with"),
    Idle(("data.train_*", "data.val_*", "data.prompt_*", "data.response_*", "data.multiturn.*", "data.custom_cls.*",
          "data.apply_chat_template_kwargs", "data.truncation", "data.shuffle", "data.seed", "data.*_key",
          "data.ignore_input_ids_mismatch", "data.image_patch_size"),
         "which samples are read, of length training.seq_len"),
    Idle(("data.use_shm", "model.use_shm"), "from where files are read"),
    Unmodelled(("model.external_lib",), "code that is imported before the model is made (fsdp_sft_trainer.py:213): "
               "transformers' layers run", (None,)),
    Idle(("model.fsdp_config.offload_params",), "read beside cpu_offload alone (fsdp_sft_trainer.py)"),
    Idle(("use_remove_padding",), "without Ulysses the trainer pads in any case"),
)


def read_sft(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    """Reads a recipe of the supervised trainer on `gpus` (None: asked)."""
    read_named_model(reader, draft, "model.partial_pretrain")
    read_remote_code(reader, draft, "model.trust_remote_code")
    read_machine(draft, None)
    _read_ranks(reader, draft, gpus)
    _read_batches(reader, draft)
    _read_sharding(reader, draft)
    checkpoints = reader.flag("model.enable_gradient_checkpointing")
    if checkpoints is None or checkpoints.value:
        _said(draft, "training.recompute", checkpoints, "full")
        if not _is_first(draft):  # a layer of FSDP 1 is gathered around its checkpoint, whoever sets it
            draft.default("framework_options.recompute_by", "transformers", _RELEASE,
                          f"{_TRAINER} _build_model_optimizer")
    else:
        draft.put("training.recompute", checkpoints, "none")
    if not reader.has("model.fsdp_config.model_dtype"):
        draft.default("training.precision.params", "fp32", _RELEASE, _FILE)
    draft.default("training.precision.grad_reduce", "fp32", _RELEASE, f"{_TRAINER}: reduce_dtype of both policies")
    draft.default("implementation", "hf", _RELEASE, f"{_TRAINER}: AutoModelForCausalLM")
    draft.default("framework_options.attn_implementation", "flash_attention_2", _RELEASE, _TRAINER)
    draft.default("framework_options.sync_gradients", "every", _RELEASE, f"{_TRAINER} training_step")
    draft.infer("training.loss", "hf", "a cross entropy in fp32 (autocast); the copy of logits that shifts them is not "
                                       "counted", source=f"{_TRAINER} _compute_loss_and_backward")
    _read_adapters(reader, draft)
    _expect_served(reader, draft)
    read_rows(reader, draft, _ROWS)


def _expect_served(reader: Reader, draft: Draft) -> None:
    """Records values at which the trainer itself stops (fsdp_sft_trainer.py:111, :361)."""
    template, schedule = reader.take("data.chat_template"), reader.text("optim.lr_scheduler")
    if template is not None and template.value is not None:
        draft.use(template)
        draft.fail(template.where, f"Apply Chat template from config is not supported yet ({_RELEASE} {_TRAINER}:111)")
    else:
        draft.idle(template, "as without it")
    if schedule is not None and schedule.value not in ("cosine", "wsd"):
        draft.use(schedule)
        draft.fail(schedule.where, f"Unknown lr scheduler: {schedule.value} ({_RELEASE} {_TRAINER}:370)")
    else:
        draft.idle(schedule, "values, not tensors")


def _said(draft: Draft, key: str, taken: Taken[Any] | None, value: Any) -> None:
    """Writes a key that the recipe says, or else the release's default."""
    if taken is not None:
        draft.put(key, taken, value)
    else:
        draft.default(key, value, _RELEASE, _FILE)


def _read_ranks(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    split = reader.integer("ulysses_sequence_parallel_size")
    packed = reader.flag("use_remove_padding") if split is not None and split.value > 1 else None
    if split is None or split.value <= 1:
        draft.idle(split, "the default")
        split = None
    elif packed is None or not packed.value:
        draft.use(packed)
        draft.fail(split.where, "Sequence parallel is only supported when remove_padding is enabled "
                                f"({_RELEASE} {_TRAINER}:232)")
    else:
        draft.use(packed, why="ranks may share sequences")
    draft.put("mesh.cp", split)
    if gpus is None:
        draft.ask("mesh.dp_shard", "--gpus N", "number of GPUs (torchrun --nproc_per_node)")
    else:
        share_out(draft, gpus, {split.key: split} if split else {}, "mesh.dp_shard", "all processes of the launcher",
                  f"{_TRAINER} run_sft")


def _read_batches(reader: Reader, draft: Draft) -> None:
    length, answer = reader.integer("data.max_length"), draft.answers.seq_len
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle(length, f"{answer.where} says how long sequences are")
    else:
        _said(draft, "training.seq_len", length, length.value if length else 1024)
    for key, name, default in (("training.micro_batch_size", "micro_batch_size_per_gpu", 4),
                               ("training.global_batch_size", "train_batch_size", 256)):
        taken = reader.integer(f"data.{name}")
        _said(draft, key, taken, taken.value if taken else default)


def _read_sharding(reader: Reader, draft: Draft) -> None:
    """FSDP 1 or 2, see [Note: units]."""
    strategy = reader.text("model.strategy")
    if strategy is not None and strategy.value not in ("fsdp", "fsdp2"):
        draft.refuse(strategy, f"the strategy {strategy.value}", always=True)
        return
    first = strategy is not None and strategy.value == "fsdp"
    _said(draft, "framework", strategy, "fsdp1" if first else "fsdp2")
    if first:
        draft.default("framework_options.use_orig_params", value=False, release=_RELEASE, source=_TRAINER)
    else:
        draft.default("framework_options.reshard_after_forward", value=True, release=_RELEASE, source=_TRAINER)
        if not is_tied(draft):
            draft.default("framework_options.wrap", "separate_embedding", release=_RELEASE,
                          source="utils/fsdp_utils.py apply_fsdp2: of a head that is not tied")
    _read_units(reader, draft, first=first)
    away = reader.flag("model.fsdp_config.cpu_offload")
    if away is not None and away.value:
        draft.refuse(away, "offload of verl's supervised trainer")
    else:
        draft.idle(away, "everything is on the device")


def _read_units(reader: Reader, draft: Draft, *, first: bool) -> None:
    """Settings of units (utils/fsdp_utils.py get_fsdp_wrap_policy, apply_fsdp2): FSDP2 takes names of classes alone."""
    few, whole = reader.integer(f"{_UNITS}.min_num_params"), reader.flag(f"{_UNITS}.disable")
    unread = "FSDP2 of verl makes units by names of classes alone (utils/fsdp_utils.py apply_fsdp2)"
    for one, what in ((few, "units by their size"), (whole, "the whole model as one unit")):
        if one is not None and one.value and first:
            draft.refuse(one, what)
        else:
            draft.idle(one, unread if one is not None and one.value else "layers are units")
    named = reader.words(f"{_UNITS}.transformer_layer_cls_to_wrap")
    if named is not None and named.value:
        draft.refuse(named, "units by the names of their classes, in place of the model's own")
    else:
        draft.idle(named, "the model's own: its layers")


def _is_first(draft: Draft) -> bool:
    """True if the recipe shards by FSDP 1."""
    return draft.has_option("use_orig_params")


def _read_adapters(reader: Reader, draft: Draft) -> None:
    """LoRA of PEFT; an adapter's rank of 0 is none."""
    rank, alpha = reader.integer("model.lora_rank"), reader.number("model.lora_alpha")
    named = reader.words("model.target_modules")
    if rank is None or rank.value < 1:
        draft.idle([one for one in (rank, alpha, named) if one], "no adapters: the rank is 0")
        return
    if _is_first(draft):
        draft.default("framework_options.wrap", "layers_adapters", _RELEASE, "verl/utils/fsdp_utils.py:100")
    draft.infer("training.method", "lora", "lora_rank is above 0", rank)
    draft.put("training.lora.rank", rank)
    _said(draft, "training.lora.alpha", alpha, alpha.value if alpha else 16)
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if not write_targets(draft, named, family) and named is not None:
        draft.refuse(named, f"all linear layers of the family {family or 'that is not known'}")
    draft.default("training.lora.dtype", "fp32", _RELEASE, f"{_TRAINER}: the model goes to model_dtype")
