"""A step of a job configuration: batches, number formats, checkpointing, torch.compile, optimizer, offload."""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, read_rows
from simcore.recipes.torchtitan.model import RELEASE, SOURCE

__all__ = ["CHECKPOINT_ROWS", "FORMAT_NAMES", "OPTIMIZER_ROWS", "is_compiled", "read_batches", "read_checkpointing",
           "read_compile", "read_formats", "read_optimizer"]

FORMAT_NAMES: Final = {"bfloat16": "bf16", "float32": "fp32"}
_LENGTH, _LOCAL = 2048, 8
"""Defaults of `training.seq_len` and `training.local_batch_size`."""
_ROUTER: Final = ["moe.router.gate"]
"""Default of the products that a checkpoint by operator never keeps."""
_COMPILED: Final = ("compile.enable", "training.compile")
"""The switch as of 0.2 and of 0.1."""
OPTIMIZER_ROWS: Final = (
    Says("optimizer.name", "training.optimizer.name", "text", {"AdamW": "adamw", "Adam": "adam"}, what="optimizer"),
    Says("optimizer.implementation", "training.optimizer.implementation", "text",
         {"fused": "fused", "foreach": "foreach", "for-loop": "for_loop"}, what="implementation"),
    Off("optimizer.early_step_in_backward", "an optimizer that steps within backward"),
    Idle(tuple(f"optimizer.{name}" for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
         "values, not tensors"),
)
CHECKPOINT_ROWS: Final = (
    Says("activation_checkpoint.early_stop", "framework_options.early_stop", "flag", {True: True},
         {False: "the default"}),
    Idle(tuple(f"activation_checkpoint.{name}" for name in (
        "determinism_check", "debug", "memory_budget", "visualize_memory_budget_pareto")),
        "checks, messages, and settings of the mode memory_budget alone"),
)


def read_batches(reader: Reader, draft: Draft) -> None:
    """Writes length and batches; with pipeline stages a microbatch is `pipeline_parallel_microbatch_size`."""
    length, answer = reader.integer("training.seq_len"), draft.answers.seq_len
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle(length, f"{answer.where} says how long sequences are")
    elif length is not None:
        draft.put("training.seq_len", length)
    else:
        draft.default("training.seq_len", _LENGTH, RELEASE, SOURCE)
    local, whole = reader.integer("training.local_batch_size"), reader.integer("training.global_batch_size")
    mesh: dict[str, Any] = draft.values.get("mesh", {})
    each = local.value if local else _LOCAL
    if mesh.get("pp", 1) > 1:
        _read_microbatches(reader, draft)
    elif local is not None:
        draft.put("training.micro_batch_size", local)
    else:
        draft.default("training.micro_batch_size", _LOCAL, RELEASE, SOURCE)
    ranks = mesh.get("dp_shard", 0) * mesh.get("dp_replicate", 1)
    if whole is not None and whole.value == 0:
        draft.use(local, whole)
        draft.fail(whole.where, f"{whole.key} 0: expected -1, or 1 and more (torchtitan 0.2.2 train.py)")
    elif whole is not None and whole.value > 0:
        draft.put("training.global_batch_size", whole)
        _expect_one_schedule(draft, mesh, local, each * ranks, whole)
    elif ranks:
        draft.infer("training.global_batch_size", each * ranks,
                    f"local_batch_size {each} x {ranks} data-parallel ranks", local, whole, source=SOURCE)
    else:
        draft.use(local, whole, why="sequences of a step of so many ranks as are asked for")


def _read_microbatches(reader: Reader, draft: Draft) -> None:
    size = reader.integer("parallelism.pipeline_parallel_microbatch_size")
    if size is not None:
        draft.put("training.micro_batch_size", size)
    else:
        draft.default("training.micro_batch_size", 1, RELEASE, SOURCE)


def _expect_one_schedule(draft: Draft, mesh: dict[str, Any], local: Taken[int] | None, schedule: int,
                         whole: Taken[int]) -> None:
    """Refuses several schedules of pipeline stages in a step, which would be counted as one of all microbatches."""
    if mesh.get("pp", 1) == 1:
        return
    if schedule and schedule != whole.value:
        draft.refused.append(Problem(whole.where, f"not yet: {whole.key}: several schedules of pipeline stages in a "
                                                  f"step: {whole.value} sequences, {schedule} of them in one"))
    draft.use(local, why="all of a step, in one schedule")


_DEFAULTS: Final = {"training.dtype": "float32", "training.mixed_precision_param": "bfloat16",
                    "training.mixed_precision_reduce": "float32", "optimizer.implementation": "fused"}


def read_formats(reader: Reader, draft: Draft, *, fp8: bool) -> None:
    """Writes formats of parameters, products and reductions, and what is offloaded."""
    for key, value in _DEFAULTS.items():
        if not reader.has(key):
            draft.release_default(key, value, RELEASE, SOURCE)
    read_rows(reader, draft, [
        Says("training.dtype", "training.precision.params", "text", FORMAT_NAMES, what="parameters in"),
        Says("training.mixed_precision_reduce", "training.precision.grad_reduce", "text", FORMAT_NAMES,
             what="reductions in")])
    computed = reader.text("training.mixed_precision_param")
    if fp8 and computed is not None and computed.value == "bfloat16":
        draft.idle(computed, "the default; linears of blocks are products in fp8")
    elif fp8 or (computed is not None and computed.value not in FORMAT_NAMES):
        draft.refuse(computed, f"products in {computed.value if computed else ''}")
    else:
        draft.put("training.precision.compute", computed, FORMAT_NAMES.get(computed.value) if computed else None)
    away = reader.flag("training.enable_cpu_offload")
    if away is not None and away.value:
        for name in ("params", "gradients", "optimizer"):
            draft.infer(f"training.offload.{name}", "host", "FSDP2's CPUOffloadPolicy", away,
                        source="models/llama3/infra/parallelize.py apply_fsdp")
    else:
        draft.idle(away, "the default")


# ---- checkpointing --------------------------------------------------------------------------------------------------
def read_checkpointing(reader: Reader, draft: Draft) -> None:
    """Writes what is recomputed: nothing, layers, or what the list of operators does not keep."""
    mode, option = reader.text("activation_checkpoint.mode"), reader.text("activation_checkpoint.selective_ac_option")
    word = mode.value if mode else "selective"
    if word == "selective":
        _read_selective(draft, mode, option)
    else:
        draft.idle(option, "of the mode selective alone")
        if word in ("none", "full"):
            draft.put("training.recompute", mode, word)
        else:
            draft.refuse(mode, f"activation checkpointing {word}")
    forced = reader.words("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns")
    if forced is not None and forced.value not in ([], _ROUTER) and option is not None and option.value == "op":
        draft.refuse(forced, "products of other modules that are always computed again")
    else:
        draft.idle(forced, "the default, or of checkpointing by operator alone")
    kept = reader.flag("activation_checkpoint.preserve_rng_state")
    if kept is None or kept.value:
        draft.idle(kept, "the default")
    else:
        draft.unmodelled(kept, "the state of random numbers, a few bytes a layer, is not told apart")
    read_rows(reader, draft, CHECKPOINT_ROWS)


def _read_selective(draft: Draft, mode: Taken[str] | None, option: Taken[str] | None) -> None:
    word = option.value if option else "2"
    if word == "op":
        draft.infer("training.recompute.mode", "per_op", "selective, by operator", option, mode,
                    source="distributed/activation_checkpoint.py")
    elif word in ("0", "1"):
        draft.infer("training.recompute", "full", "selective, every layer", option, mode,
                    source="distributed/activation_checkpoint.py _apply_layer_sac")
    elif word.isdigit():
        source = f"distributed/activation_checkpoint.py _apply_layer_sac{'' if option else '; 2 is the default'}"
        draft.infer("training.recompute", {"mode": "every", "num_layers": int(word)}, "selective, one layer in so many",
                    option, mode, source=source)
    else:
        draft.use(mode)
        draft.refuse(option, f"selective checkpointing {word}")


# ---- compilation ----------------------------------------------------------------------------------------------------
def is_compiled(reader: Reader) -> bool:
    """True if torch.compile runs on the blocks; the keys stay untouched."""
    components = reader.look("compile.components")
    return any(reader.look(key) is True for key in _COMPILED) and (components is None or "model" in components)


def read_compile(reader: Reader, draft: Draft) -> None:
    """Writes what torch.compile runs on."""
    enabled = next((one for key in _COMPILED if (one := reader.flag(key)) is not None), None)
    components, backend = reader.words("compile.components"), reader.text("compile.backend")
    if enabled is None or not enabled.value:
        draft.idle([one for one in (enabled, components, backend) if one], "nothing is compiled")
        return
    parts = {*(components.value if components else ("model", "loss"))}
    word: Any = True if parts == {"model", "loss"} else next(iter(parts), "nothing")
    if parts and parts <= {"model", "loss"}:
        draft.infer("framework_options.compile", word, "what torch.compile runs on", enabled, components)
    else:
        draft.use(enabled)
        draft.refuse(components, f"torch.compile on {', '.join(sorted(parts)) or 'nothing'} alone")
    if backend is not None and backend.value != "inductor":
        draft.refuse(backend, f"torch.compile by {backend.value}")
    else:
        draft.idle(backend, "the default")


def read_optimizer(reader: Reader, draft: Draft) -> None:
    """Reads the block `optimizer`."""
    read_rows(reader, draft, OPTIMIZER_ROWS)
