"""The supervised trainer of OpenRLHF (`openrlhf/cli/train_sft.py`), over DeepSpeed's ZeRO.

[Note: one row] With `packing_samples` the tokens of a microbatch are one row without padding (`models/
ring_attn_utils.py` unpad_and_slice_tensor): counted as samples of full length. Otherwise rows are padded to the
longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.attention import read_attention
from simcore.recipes.huggingface.deepspeed import read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.modules import family_of, is_dense, write_targets
from simcore.recipes.huggingface.named_model import read_named_model
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.trainer import double_batches
from simcore.recipes.machine import read_machine
from simcore.recipes.openrlhf.strategy import RELEASE, configured
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["OF_DEEPSPEED", "Batches", "read_format", "read_kernels", "read_sft", "read_zero_training", "said"]

_CLI: Final = "cli/train_sft.py"
_ACTOR: Final = "models/actor.py"
_ROW: Final = f"{RELEASE} models/ring_attn_utils.py unpad_and_slice_tensor: all tokens of a microbatch are one row"
_PAIRS: Final = "trainer/dpo_trainer.py, rm_trainer.py concatenated_inputs: chosen and rejected in one batch"
_STEP: Final = f"{RELEASE} utils/deepspeed/deepspeed.py setup_distributed"
_FORMATS: Final = ("bf16", "fp16")
_FLASH: Final = "flash_attention_2"
OF_DEEPSPEED: Final = (
    Says("ds.use_liger_kernel", "framework_options.use_liger_kernel", "flag", {True: True}, {False: "the default"}),
    Says("ds.experts_implementation", "", "text", words={None: None},
         idle={"grouped_mm": "grouped products, as they are counted"}, what="experts by"),
    Off("ds.deepcompile", "DeepCompile"),
    Off("train.full_determinism_enable", "kernels that give the same numbers in each run"),
    Says("ds.ring_attn_size", "", idle={1: "one rank"}, words={None: None},
         what="sequences that ranks share by ring-flash-attn:"),
    Idle(("ds.ring_attn_head_stride",), "read with ds.ring_attn_size above 1"),
    Idle(("train.seed", "local_rank", "use_ms", "train.max_epochs"), "the run around the steps"),
    Idle(("ckpt.*", "logger.*", "ds.use_universal_ckpt"), "files and logging: not part of a step"),
)
"""Arguments that all trainers over DeepSpeed read alike; epochs are PPO's own."""
_ROWS: Final = (
    *OF_DEEPSPEED,
    Says("optim", "", "text", words={None: None}, idle={"adam": "the default"}, what="the optimizer"),
    Idle(("model.gradient_checkpointing_reentrant",), "reentrant or not: the same tensors are kept"),
    Unmodelled(("model.aux_loss_coef",), "the loss that balances experts is computed and not counted", (0, 0.0)),
    Idle(("model.pretrain_mode_enable", "data.multiturn"), "which tokens count"),
    Idle(("data.*", "eval.*", "train_split"), "which samples are read, and how; evaluation is not part of a step"),
    Idle(("adam.*", "muon.*", "lr_scheduler", "lr_warmup_ratio", "min_lr_ratio"), "numbers of the update"),
)


@dataclass(frozen=True, slots=True)
class Batches:
    """Defaults of a trainer's program: tokens of a sample, samples of a microbatch.

    `cli`: its file; `pairs`: a sample is two sequences.
    """

    cli: str
    length: int = 2048
    micro: int = 8
    pairs: bool = False


_SFT: Final = Batches(_CLI)


def read_sft(reader: Reader, draft: Draft) -> Reader:
    """Reads a recipe of the supervised trainer; returns the reader of DeepSpeed's configuration."""
    strategy = read_zero_training(reader, draft, _SFT)
    draft.default("training.loss", "flash_fp32", RELEASE, f"{_ACTOR} forward, models/utils.py log_probs_from_logits")
    return strategy


def read_zero_training(reader: Reader, draft: Draft, batches: Batches) -> Reader:
    """Reads all but the loss of a training over DeepSpeed; returns the reader of DeepSpeed's configuration."""
    read_named_model(reader, draft, "model.model_name_or_path")
    read_machine(draft, None)
    packing = read_kernels(reader, draft)
    strategy = Reader(configured(reader, draft, read_format(reader, draft)))
    zero = read_deepspeed(strategy, draft)
    if zero.shards is Shards.ZERO:
        shard_over_ranks(draft, whole=zero.is_whole)
    _read_method(reader, draft)
    checkpoints = reader.flag("model.gradient_checkpointing_enable")
    if checkpoints is not None:
        draft.put("training.recompute", checkpoints, "full" if checkpoints.value else "none")
    else:
        draft.default("training.recompute", "none", RELEASE, batches.cli)
    _read_batches(reader, draft, packing, batches)
    model = draft.answers.settings.get("model") or draft.values.get("model")
    if family_of(model) and not is_dense(model):
        draft.unmodelled_default("output_router_logits", "true", "the balancing loss is computed in any case, and not "
                                 f"counted ({RELEASE} {_ACTOR})")
    read_rows(reader, draft, _ROWS)
    return strategy


def read_format(reader: Reader, draft: Draft) -> Taken[Any] | None:
    """Argument that says the format of products, which is the model's; up to 0.9 `--bf16`."""
    named, older = reader.text("ds.param_dtype"), reader.flag("bf16")
    if named is not None and named.value not in _FORMATS:
        draft.use(named)
        draft.fail(named.where, f"argument --ds.param_dtype: invalid choice: {named.value!r} (choose from bf16, fp16; "
                                f"{RELEASE} {_CLI})")
        named = None
    if reader.has("flash_attn") and older is None:
        draft.refuse(reader.take("flash_attn"), "a model in the format of its checkpoint, without --bf16")
    return named or older


def read_kernels(reader: Reader, draft: Draft) -> Taken[bool] | None:
    """Writes the attention, and returns the switch of packing; packs have flash-attention whatever is said."""
    named, older, packing = reader.text("ds.attn_implementation"), reader.flag("flash_attn"), reader.flag(
        "ds.packing_samples")
    is_packed = packing is not None and packing.value
    if named is not None and is_packed and "flash_attention" not in named.value:
        draft.idle([*([older] if older else [])], "of older releases")
        draft.infer("framework_options.attn_implementation", _FLASH, "packs have flash-attention", named, packing,
                    source=f"{RELEASE} {_CLI}")
    elif named is not None:
        draft.idle([*([older] if older else [])], "of older releases")
        read_attention(draft, named, named.value)
    elif older is not None:
        draft.put("framework_options.attn_implementation", older, _FLASH if older.value or is_packed else "eager")
    elif _is_older(reader) and not is_packed:
        draft.default("framework_options.attn_implementation", "eager", "OpenRLHF 0.8.9",
                      f"{_ACTOR}: without --flash_attn")
    else:
        draft.default("framework_options.attn_implementation", _FLASH, RELEASE, _CLI)
    return packing


def _is_older(reader: Reader) -> bool:
    """True for arguments of releases up to 0.9, in which `--bf16` and `--flash_attn` are switches."""
    return reader.has("bf16") or reader.has("flash_attn")


def _read_method(reader: Reader, draft: Draft) -> None:
    """Adapters of PEFT over all linear layers by default, of a base in 4 bits with `load_in_4bit`."""
    rank, packed = reader.integer("ds.lora.rank"), reader.flag("ds.load_in_4bit")
    others = [reader.number("ds.lora.alpha"), reader.number("ds.lora.dropout"), reader.words("ds.lora.target_modules")]
    is_packed = packed is not None and packed.value
    if rank is None or rank.value < 1:
        if is_packed:
            draft.refuse(packed, "a base in 4 bits without adapters")
        else:
            draft.idle(packed, "the default")
        draft.idle([one for one in (rank, *others) if one is not None], "no adapters: the rank is 0")
        return
    draft.infer("training.method", "qlora" if is_packed else "lora", "lora.rank is above 0", rank, packed)
    if is_packed:
        draft.infer("training.quantization", {"format": "nf4", "double_quant": True}, "load_in_4bit", packed,
                    source=f"{RELEASE} {_ACTOR} BitsAndBytesConfig")
    draft.put("training.lora.rank", rank)
    for name, given, default in (("alpha", others[0], 16), ("dropout", others[1], 0.0)):
        said(draft, f"training.lora.{name}", given, default)
    _read_targets(draft, reader.words("ds.lora.target_modules"))


def _read_targets(draft: Draft, named: Taken[list[str]] | None) -> None:
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if write_targets(draft, named, family):
        return
    if named is not None:
        draft.refuse(named, f"all linear layers of the family {family or 'that is not known'}")
    elif family:
        draft.ask("training.lora.target_modules", "--set training.lora.target_modules=[...]",
                  f"modules with adapters: all linear layers of the family {family}")


def said(draft: Draft, key: str, taken: Taken[Any] | None, default: Any, source: str = _CLI) -> None:
    """Writes what is said, or else the release's default, which stands in `source`."""
    if taken is not None:
        draft.put(key, taken)
    else:
        draft.default(key, default, RELEASE, source)


def _read_batches(reader: Reader, draft: Draft, packing: Taken[bool] | None, batches: Batches) -> None:
    """Writes lengths and batches, see [Note: one row]."""
    limit, micro, whole = (reader.integer(f"{key}") for key in ("data.max_len", "train.micro_batch_size",
                                                                "train.batch_size"))
    answer, each = draft.answers.seq_len, micro.value if micro else batches.micro
    is_packed = packing is not None and packing.value
    longest = answer.value if answer else limit.value if limit else batches.length
    samples = whole.value if whole else 128
    rows = each * (1 + batches.pairs) if is_packed else 1
    if answer is not None:
        draft.answered("training.seq_len", answer, longest * rows)
        draft.idle(limit, f"{answer.where} says how long samples are")
    elif rows > 1:
        draft.infer("training.seq_len", longest * rows, "max_len x sequences of a microbatch", limit, micro,
                    source=_ROW, where=draft.path)
    else:
        said(draft, "training.seq_len", limit, batches.length, batches.cli)
    if not is_packed:
        draft.idle(packing, "the default")
        said(draft, "training.micro_batch_size", micro, batches.micro, batches.cli)
        said(draft, "training.global_batch_size", whole, 128, batches.cli)
        if batches.pairs:
            double_batches(draft, draft.path, f"{RELEASE} {_PAIRS}")
        return
    draft.infer("training.lengths", "packed", "packing_samples", packing, source=_ROW)
    draft.infer("training.packed_length", longest, "the longest sample of a row", None if answer else limit, packing,
                source=_ROW)
    draft.infer("training.micro_batch_size", 1, "one row a microbatch", micro, packing, source=_ROW)
    if samples % each:
        draft.use(whole)
        draft.fail(whole.where if whole else draft.path, f"train.batch_size {samples} is no multiple of "
                   f"micro_batch_size {each} ({_STEP})")
    else:
        draft.infer("training.global_batch_size", samples // each, "batch_size in rows of micro_batch_size samples",
                    whole, micro, packing, source=_STEP)
