"""Framework of Megatron-Bridge's configurations: Megatron-Core's data parallelism, or Megatron-FSDP's own."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["OF_FSDP", "SWITCHED", "read_framework"]

_OPTION: Final = "framework_options."
OF_FSDP: Final = {"data_parallel_sharding_strategy": "", "outer_dp_sharding_strategy": "no_shard",
                  "suggested_communication_unit_size": 0, "fsdp_double_buffer": False,
                  "fsdp_all_gather_in_start_param_sync": True, "keep_fp8_transpose_cache": False}
"""Megatron-FSDP's settings of ddp, with the value that changes nothing."""
_SWITCHES: Final = {"fsdp_db_use_persist_buf_on_alloc_fail": "persistent buffers where units share none",
                    "megatron_fsdp_max_pool_double_buffer": "shared buffers of the largest size",
                    "megatron_fsdp_enable_fine_grained_param_gather": "parameters gathered module by module"}
SWITCHED: Final = ("model.init_model_with_meta_device", "model.calculate_per_token_loss", "logger.log_params_norm")
"""Settings of other parts on which Megatron-FSDP depends."""
_OWN: Final = "as Megatron-FSDP is simulated without it"
_NOT_FSDP: Final = "read with ddp.use_megatron_fsdp alone"


def read_framework(reader: Reader, draft: Draft) -> None:
    """Writes the framework: Megatron-FSDP if the configuration of DDP asks for it, with its own options."""
    fsdp = _asks(reader, draft)
    own = {name: reader.take(f"ddp.{name}") for name in OF_FSDP}
    registers, by_hand = reader.flag("ddp.nccl_ub"), reader.flag("ddp.fsdp_manual_registration")
    scatter = [reader.flag(f"{block}.use_distributed_optimizer") for block in ("ddp", "optimizer")]
    draft.infer("framework", "megatron_fsdp" if fsdp and fsdp.value else "megatron",
                "ddp.use_megatron_fsdp" if fsdp else "recipes of Bridge", fsdp)
    draft.infer("framework_version", "main 2026-08-22", "the release of the recipes")
    for name, one in own.items():
        if one is not None and fsdp and fsdp.value and one.value != OF_FSDP[name]:
            draft.put(f"{_OPTION}{name}", one)
        else:
            draft.idle(one, _OWN if fsdp and fsdp.value else _NOT_FSDP)
    if registers is not None and registers.value:
        draft.put(f"{_OPTION}nccl_ub", registers)
    else:
        draft.use(registers, why="off, as without it")
    draft.idle(by_hand, "when buffers are registered: after the first step")
    for key in SWITCHED if fsdp and fsdp.value else ():
        switch = reader.flag(key)
        if switch is not None and switch.value:
            draft.put(f"{_OPTION}{key.rpartition('.')[2]}", switch)
        else:
            draft.use(switch, why="off, as without it")
    _read_buffers(reader, draft, is_on=fsdp is not None and fsdp.value)
    draft.use(*scatter, why="Megatron-FSDP shards the optimizer by its own strategy" if fsdp and fsdp.value else
              "ddp or the optimizer asks for the distributed optimizer, as without either (training/config.py, "
              "_validate_and_sync_distributed_optimizer_settings)")
    said = [one for one in scatter if one is not None]
    if said and not any(one.value for one in said) and not (fsdp and fsdp.value):
        draft.infer(f"{_OPTION}use_distributed_optimizer", False, "neither ddp nor the optimizer asks for it",  # noqa: FBT003
                    *said, source="Bridge training/config.py, _validate_and_sync_distributed_optimizer_settings")
        if "muon" in str(reader.look("optimizer.optimizer")):
            draft.infer(f"{_OPTION}use_layer_wise_param_layout", False, "whole parameters are dealt",  # noqa: FBT003
                        *said, source="Megatron-LM main optimizer/__init__.py, use_separate_distributed_optimizer")


def _asks(reader: Reader, draft: Draft) -> Taken[bool] | None:
    """Switch that asks for Megatron-FSDP: of ddp or of dist, each of which sets the other (training/config.py:1484)."""
    own, other = reader.flag("ddp.use_megatron_fsdp"), reader.flag("dist.use_megatron_fsdp")
    if other is not None and other.value and not (own and own.value):
        draft.use(own, why="dist.use_megatron_fsdp asks for Megatron-FSDP (training/config.py:1484)")
        own, other = other, None
    draft.use(other, why="ddp.use_megatron_fsdp decides" if other and not other.value else
              "as ddp.use_megatron_fsdp says it (training/config.py:1484)")
    return own


def _read_buffers(reader: Reader, draft: Draft, *, is_on: bool) -> None:
    """Reads settings of Megatron-FSDP's buffers that the simulation has one value of."""
    formats = [reader.text(f"ddp.megatron_fsdp_{name}_dtype") for name in ("main_grads", "grad_comm")]
    master = reader.text("ddp.megatron_fsdp_main_params_dtype")
    release = reader.integer("ddp.megatron_fsdp_version")
    switches = [(reader.flag(f"ddp.{name}"), what) for name, what in _SWITCHES.items()]
    _read_kept_gradients(reader, draft, formats[0].value if formats[0] else "", is_on=is_on)
    if is_on:
        draft.use(*formats)
    else:
        draft.idle([one for one in formats if one], _NOT_FSDP)
    for one, usual, what in ((master, "fp32", "masters in another format than fp32"),
                             (release, 1, "the second implementation of Megatron-FSDP"),
                             *((one, False, what) for one, what in switches)):
        if one is None:
            continue
        if is_on and one.value != usual:
            draft.refuse(one, what)
        else:
            draft.idle(one, _OWN if is_on else _NOT_FSDP)


def _read_kept_gradients(reader: Reader, draft: Draft, kept: str, *, is_on: bool) -> None:
    """Refuses gradients that a graph keeps as a cast copy beside their buffer. `kept`: the buffer's format, or "".

    Megatron-LM d98e8a64 megatron_fsdp/param_and_grad_buffer.py, zero_grad: they are views of the buffer, and cost
    nothing, where the optimizer is precision-aware, or its parameters (fp32) have the buffer's format.
    """
    mode = reader.flag("ddp.megatron_fsdp_cuda_graph_mode")
    is_view = bool(reader.look("optimizer.use_precision_aware_optimizer")) or kept == "fp32"
    if mode is not None and mode.value and is_on and not is_view:
        draft.refuse(mode, "gradients cast to the format of the optimizer's parameters stay between steps")
    else:
        draft.idle(mode, _NOT_FSDP if not is_on else "gradients are views of their buffer, or let go")
