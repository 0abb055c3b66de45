"""Arguments of transformers' Trainer that recipes around it share: who shards, batches of a step, the optimizer.

The launcher's YAML, `deepspeed` or `fsdp` say what the GPUs split; without them each has a copy.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.inputs.block import shorten
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch, copy_to_ranks, read_launch
from simcore.recipes.huggingface.companions import Companions
from simcore.recipes.huggingface.deepspeed import read_deepspeed, shard_over_ranks
from simcore.recipes.huggingface.fsdp import Plugin, read_plugin, share_ranks
from simcore.recipes.huggingface.low_rank.trainer import LOW_RANK, read_low_rank
from simcore.recipes.huggingface.optimizers import (
    OPTIMIZERS,
    SOURCE,
    holds_states_on_host,
    named_optimizer,
    read_clipping,
    read_decay,
    write_optimizer,
    write_wide_states,
)
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.shipped import own_files
from simcore.recipes.huggingface.without_effect import ALIKE
from simcore.recipes.huggingface.zero import check_numbers
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, Unmodelled, read_rows

__all__ = ["ACCELERATOR", "SWITCHES", "UNUSED", "double_batches", "read_batches", "read_optimizer", "read_sharding",
           "turn_off_dropout"]

_TRAINER: Final = "transformers 5.23.0"
_PLUGIN: Final = Plugin("fsdp_config.", "TRANSFORMER_BASED_WRAP", True,  # noqa: FBT003 - a value, not a switch
                        "transformers 5.23.0", "training_args.py _process_fsdp_args",
                        ("offload_params", "sharding_strategy"), "transformers 5.23.0 training_args.py")
_MAPPING: Final = ("the Trainer makes no ParallelismConfig of a mapping, and the Accelerator stops at it (transformers "
                   "5.23.0 training_args.py _VALID_DICT_FIELDS): say it in accelerate's YAML")
_FUSED: Final = "adamw_torch_fused"
_STEPS: Final = "accelerator_config.gradient_accumulation_kwargs.num_steps"
_OFF: Final[tuple[Any, ...]] = (None, False, "", [])
UNUSED: Final = ("before each backward DDP walks through the graph, and adds up a map of used parameters over ranks: "
                 "neither is timed")
_DDP: Final[tuple[Row, ...]] = (
    Says("ddp_bucket_cap_mb", "framework_options.bucket_cap_mb"),
    Off("ddp_static_graph", "a graph that DDP takes as fixed"),
    Says("ddp_backend", "", "text", {None: None}, {"nccl": "the default"}, "collectives by"),
    Unmodelled(("ddp_broadcast_buffers",), "buffers of a few hundred bytes, which nothing sends here"),
    Unmodelled(("ddp_find_unused_parameters",), UNUSED), Idle(("ddp_timeout",), "how long ranks wait for each other"))
_NO_DDP: Final[tuple[Row, ...]] = (Idle(("ddp_*",), "about DDP"),)
ACCELERATOR: Final[tuple[Row, ...]] = (
    Off("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", "reductions after each microbatch"),
    Off("accelerator_config.split_batches", "a microbatch that is shared out over the ranks"),
    Unmodelled(("accelerator_config.dispatch_batches",), "batches that one rank reads and sends to the others"),
)
"""Settings of accelerate's batches."""
SWITCHES: Final[tuple[Row, ...]] = (
    Off("torch_compile", "layers by torch.compile"),
    Off("auto_find_batch_size", "a batch size that is found by trials"),
    Off("use_cpu", "training on the CPU"),
    Unmodelled(("neftune_noise_alpha",), "noise that is added to embeddings"),
    Says("label_smoothing_factor", "", "number", {None: None}, {0.0: "the default"}, "a loss that is smoothed by"),
    *(Says(f"torch_compile_{name}", "", "text", {None: None}, what=f"layers by torch.compile, {name}")
      for name in ("backend", "mode")),
    *ACCELERATOR,
    Unmodelled(("full_determinism",), "deterministic kernels are not told apart from others"),
    Unmodelled(("group_by_length",), ALIKE),
    Idle(("average_tokens_*",), "the loss is scaled by one number, which ranks add up"),
    Unmodelled(("torch_empty_cache_steps",), "the allocator's cache, which is emptied every so many steps"),
)
"""Arguments that change layers, loss, or the search for a batch size."""


def read_sharding(reader: Reader, draft: Draft, beside: Companions) -> Launch:
    """Writes `framework`, its options and the mesh; returns what else follows from who shards."""
    for one in reader.matching("parallelism_config.*")[:1]:
        draft.use(one)
        draft.fail(one.where, f"{one.key}: {_MAPPING}")
    zero, fsdp = reader.look("deepspeed"), reader.take("fsdp")
    if zero is None:
        reader.take("deepspeed")  # null says nothing
    own = zero is not None or (fsdp is not None and fsdp.value not in _OFF)
    if beside.accelerate is not None and not own:
        draft.idle(fsdp, "off")
        draft.idle(reader.matching("fsdp_config", "fsdp_config.*"), "fsdp is off")
        launch = read_launch(beside.accelerate, draft, beside.deepspeed)
        read_rows(reader, draft, _DDP if launch.shards is Shards.NONE else _NO_DDP)
        if beside.deepspeed is not None and launch.shards is not Shards.ZERO:
            draft.fail(beside.deepspeed.document.path, "the launcher's YAML asks for no DeepSpeed")
            draft.idle(beside.deepspeed.matching("*"), "of no part of the run")
        return launch
    if beside.accelerate is not None:
        draft.fail(beside.accelerate.document.path, "not yet: a launcher's YAML beside a recipe that asks for FSDP or "
                                                    "DeepSpeed itself")
        draft.idle(beside.accelerate.matching("*"), "the recipe decides")
    if zero is not None or beside.deepspeed is not None:
        draft.idle(fsdp, "DeepSpeed decides")
        draft.idle(reader.matching("fsdp_config", "fsdp_config.*"), "DeepSpeed decides")
        read_rows(reader, draft, _NO_DDP)
        return _read_zero(reader, draft, beside.deepspeed)
    if not own:
        draft.idle(fsdp, "off")
        draft.idle(reader.matching("fsdp_config", "fsdp_config.*"), "fsdp is off")
        draft.infer("framework", "ddp", "neither FSDP nor DeepSpeed is asked for")
        copy_to_ranks(draft)
        read_rows(reader, draft, _DDP)
        return Launch(Shards.NONE)
    read_rows(reader, draft, _NO_DDP)
    assert fsdp is not None
    return _read_fsdp(reader, draft, fsdp)


def read_batches(reader: Reader, draft: Draft, launch: Launch) -> None:
    """Writes the sequences (packs, where they are one row) of an optimizer step."""
    steps = _read_steps(reader, draft)
    _check_attention(draft, launch)
    check_numbers(draft, launch.zero, reader.integer("per_device_train_batch_size"), steps, micro_default=8)
    if launch.steps is not None:
        _compare_launch(draft, steps, launch.steps)
    mesh, training = draft.values.get("mesh", {}), draft.values.get("training", {})
    micro, ranks = training.get("micro_batch_size"), mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1)
    if steps is None or not mesh or micro is None:
        draft.use(steps, why="microbatches of a step of so many ranks as are asked for")
        return
    draft.infer("training.global_batch_size", micro * steps.value * ranks,
                f"{micro} x {steps.key} x {ranks} data-parallel ranks", steps, source=_TRAINER)


def _check_attention(draft: Draft, launch: Launch) -> None:
    """Compares the attention of ranks that share sequences with the model's."""
    shared = launch.attention
    name = draft.values.get("framework_options", {}).get("attn_implementation", "sdpa")
    if shared is not None and shared.name != name:
        draft.fail(shared.said.where if shared.said else draft.path,
                   f"core_attn_implementation='{shared.name}' does not match model config attn_implementation='{name}' "
                   "(DeepSpeed 0.19.6 runtime/sequence_parallel/ulysses_sp.py register_with_transformers)")


def _read_steps(reader: Reader, draft: Draft) -> Taken[int] | None:
    """Microbatches of a step, which `num_steps` may say in place of the trainer's own argument.

    transformers 5.23.0 trainer.py create_accelerator_and_postprocess.
    """
    steps, other = reader.integer("gradient_accumulation_steps"), reader.integer(_STEPS)
    if other is None:
        return steps
    if steps is not None and steps.value > 1:
        draft.fail(other.where, f"{other.key} beside {steps.key} {steps.value}, which is more than 1: an error of "
                                f"{_TRAINER} (trainer.py create_accelerator_and_postprocess)")
    draft.idle(steps, f"{other.key} goes before it")
    return other


def _compare_launch(draft: Draft, steps: Taken[int] | None, launched: Taken[int]) -> None:
    trainers = steps.value if steps else 1
    if launched.value == trainers:
        draft.idle(launched, "the trainer's")
    else:
        draft.use(launched)
        draft.fail(launched.where, f"{launched.key} is {launched.value}, and the trainer's {trainers}: they must be "
                                   "equal")


def read_optimizer(reader: Reader, draft: Draft, launch: Launch, default: str = _FUSED,
                   trainer: str = _TRAINER) -> None:
    """Writes the optimizer by its name; one that DeepSpeed's configuration names takes its place.

    `default`: the Trainer's own `optim` in the release `trainer`.
    """
    named = named_optimizer(reader, draft)
    if reader.look("max_grad_norm") is None:
        draft.idle(reader.matching("max_grad_norm"), f"{_TRAINER} compares it with 0, and stops; 4.46.3 clips nothing "
                                                     "at null, but norm and product are timed")
    read_clipping(reader, draft, "max_grad_norm")
    if named is not None and named.value in LOW_RANK and not (launch.zero and launch.zero.has_optimizer):
        read_low_rank(reader, draft, named)
        return
    draft.idle(reader.matching("optim_target_modules"), "read by GaLore and APOLLO alone")
    if launch.zero is not None and launch.zero.has_optimizer:
        draft.idle(named, "DeepSpeed's configuration names an optimizer")
    elif named is not None and named.value not in OPTIMIZERS:
        draft.refuse(named, f"the optimizer {named.value}")
    elif named is None and default != _FUSED and launch.shards is Shards.ZERO and not holds_states_on_host(draft):
        draft.default("training.optimizer", {**OPTIMIZERS[default]}, trainer, f"training_args.py: {default}")
    elif launch.shards is Shards.ZERO:
        write_optimizer(draft, launch.zero, named, _TRAINER, "training_args.py")
    elif named is None:
        draft.default("training.optimizer", {**OPTIMIZERS[default]}, trainer, f"training_args.py: {default}")
    else:
        draft.put("training.optimizer", named, {**OPTIMIZERS[named.value]}, SOURCE)
        write_wide_states(draft, launch.shards, _TRAINER)
    written = named.value if named and not holds_states_on_host(draft) else ""
    if launch.zero is None or not launch.zero.has_optimizer:
        read_decay(reader, draft, written, "weight_decay")
    _read_optim_args(reader, draft, written)


def _read_optim_args(reader: Reader, draft: Draft, name: str) -> None:
    """Reads `optim_args`, of which SGD and RMSprop take their momentum (transformers 5.23.0 trainer_optimizer.py).

    bitsandbytes' RMSprop has them as texts, which it compares with 0.0, and stops.
    """
    said = reader.text("optim_args")
    pairs = dict(part.partition("=")[::2] for part in said.value.replace(" ", "").split(",")) if said else {}
    if name.startswith("rmsprop_bnb") and pairs:
        draft.use(said)
        draft.fail(said.where if said else "", f"optim_args of {name} are handed over as texts, at which bitsandbytes "
                   "stops (0.50.2 optim/optimizer.py Optimizer1State)")
    elif name == "rmsprop" and pairs.get("centered", "").lower() in ("true", "1", "yes"):
        draft.refuse(said, "a centered RMSprop, which keeps a mean of gradients too")
    elif name in ("sgd", "rmsprop") and "momentum" in pairs:
        try:
            draft.put("training.optimizer.momentum", said, float(pairs["momentum"]))
        except ValueError:
            draft.use(said)
            draft.fail(said.where if said else "", f"optim_args: expected a number, got momentum={pairs['momentum']}")
    else:
        draft.idle(said, "numbers of the update")


def _read_zero(reader: Reader, draft: Draft, file: Reader | None) -> Launch:
    """DeepSpeed by a block of the recipe, or by a file, which the user must name."""
    inside = reader.is_mapping("deepspeed")
    named = None if inside else reader.text("deepspeed")
    if file is None and not inside:
        draft.use(named, why="names the file that stands beside the recipe")
        draft.fail(named.where if named else draft.path,
                   "not yet: DeepSpeed's configuration stands in another file"
                   f"{f', {shorten(named.value)}' if named else ''}: name it too, by --with")
        return Launch(Shards.ZERO)
    if file is not None:
        own_files(draft, named, file)
    zero = read_deepspeed(reader, draft, "deepspeed.") if file is None else read_deepspeed(file, draft)
    if zero.shards is not Shards.ZERO:
        return Launch(zero.shards, is_refused=True)
    shard_over_ranks(draft, whole=zero.is_whole)
    return Launch(Shards.ZERO, zero=zero)


def _read_fsdp(reader: Reader, draft: Draft, fsdp: Taken[Any]) -> Launch:
    """FSDP by the Trainer's own arguments: version 2 unless `fsdp_config` says another."""
    words = fsdp.value.split() if isinstance(fsdp.value, str) else fsdp.value if isinstance(fsdp.value, list) else []
    if not reader.is_mapping("fsdp_config"):
        draft.refuse(reader.take("fsdp_config"), "options of FSDP in another file")
    version = reader.integer("fsdp_config.version") or reader.integer("fsdp_config.fsdp_version")
    if version is not None and version.value not in (1, 2):
        draft.fail(version.where, f"{version.key}: expected 1 or 2, got {version.value}")
    second = version is None or version.value == 2
    draft.infer("framework", "fsdp2" if second else "fsdp1", "FSDP is asked for, version 2 if none is said", fsdp,
                version, source=_PLUGIN.source)
    checkpoints = read_plugin(reader, draft, _PLUGIN, second=second)
    if unknown := [word for word in words if word not in ("full_shard", "shard_grad_op", "auto_wrap", "offload")]:
        draft.fail(fsdp.where, f"not yet: fsdp: {unknown[0]}")
    said = any(reader.look(f"fsdp_config.{name}") is not None
               for name in ("reshard_after_forward", "fsdp_reshard_after_forward"))
    if second and "shard_grad_op" in words and not said:
        draft.infer("framework_options.reshard_after_forward", value=False, rule="shard_grad_op",
                    source="transformers 5.23.0 training_args.py _apply_legacy_fsdp_to_config")
    if "offload" in words:
        for part in ("params", "gradients", "optimizer"):
            draft.infer(f"training.offload.{part}", "host", "fsdp: offload moves all three", fsdp)
    share_ranks(reader, draft)
    return Launch(Shards.EACH if second else Shards.FLAT, checkpoints=checkpoints)


def double_batches(draft: Draft, where: str, collator: str) -> None:
    """Doubles batch sizes that are written, of chosen and rejected sequences. `collator`: source of the rule."""
    training = draft.values.get("training", {})
    for key, what in (("micro_batch_size", "pairs of a microbatch"), ("global_batch_size", "pairs of a step")):
        if key in training:
            draft.infer(f"training.{key}", 2 * training[key], f"2 x {what}, chosen and rejected", where=where,
                        source=collator)


def turn_off_dropout(draft: Draft, where: str, source: str, why: str = "dropout is off") -> None:
    """Takes away dropout of adapters that is written. `source`: of the rule."""
    if draft.values.get("training", {}).get("lora", {}).get("dropout"):
        draft.infer("training.lora.dropout", 0.0, why, where=where, source=source)
