"""Activations on the host in Megatron's arguments: both ways, from fields and from a scenario."""

from __future__ import annotations

from typing import Final

from simcore.recipes.megatron.argument_puts import ArgumentPuts
from simcore.recipes.megatron.fields import Writer

__all__ = ["FINE", "KEY", "LAYERS", "MODULES", "OPTION", "SMALLEST", "put_offload", "write_offload"]

KEY: Final = "training.offload.activations"
LAYERS: Final = "cpu_offloading_num_layers"
FINE: Final = "fine_grained_activation_offloading"
MODULES: Final = "offload_modules"
SMALLEST: Final = "min_offloaded_tensor_size"
OPTION: Final = "framework_options."


def write_offload(writer: Writer) -> None:
    """Writes which layers', or modules', saved tensors wait on the host.

    Layers: where their number is above 0 (training/arguments.py).
    """
    count = writer.fields.integer(LAYERS)
    if count.value:
        writer.write(KEY, "host", count, rule=f"--{LAYERS.replace('_', '-')} is above 0")
        writer.write(f"{OPTION}{LAYERS}", count.value, count)
    else:
        writer.use(count, why="no layer's activations leave")
    _write_modules(writer)


def _write_modules(writer: Writer) -> None:
    fields = writer.fields
    fine, modules, smallest = fields.flag(FINE), fields.words(MODULES), fields.integer(SMALLEST)
    share, delta = fields.number("activation_offload_fraction"), fields.integer("delta_offload_bytes_across_pp_ranks")
    later = (fields.flag("delay_offload_until_cuda_graph"), fields.integer(
        "fine_grained_offloading_max_inflight_offloads"))
    if not fine.value:
        writer.idle("no module's activations leave", fine, modules, smallest, share, delta, *later)
        return
    writer.write(KEY, "host", fine, rule=f"--{FINE.replace('_', '-')}")
    writer.write(f"{OPTION}{FINE}", True, fine)  # noqa: FBT003 - a value
    writer.write(f"{OPTION}{MODULES}", list(modules.value), modules)
    writer.write_other(f"{OPTION}{SMALLEST}", smallest.value, 1024 * 1024, smallest)
    for one, usual in ((share, (None, 1)), (delta, (None, 0))):
        if one.value in usual:
            writer.use(one, why="all groups of modules, as without it")
        else:
            writer.refuse("a part of the groups of modules", one)
    writer.unmodelled("when copies to the host begin, and how many run before kernels wait", *later)


def put_offload(puts: ArgumentPuts) -> None:
    """Puts the arguments for layers, or modules, whose saved tensors wait on the host."""
    outline = puts.outline
    count, space = outline.given(f"{OPTION}{LAYERS}"), outline.given(KEY)
    if count is not None and space == "host":
        puts.put(LAYERS, count, f"{OPTION}{LAYERS}", KEY)
    if outline.given(f"{OPTION}{FINE}") and space == "host":
        puts.put(FINE, True, f"{OPTION}{FINE}", KEY)  # noqa: FBT003 - a value
        for name in (MODULES, SMALLEST):
            puts.put(name, outline.given(f"{OPTION}{name}"), f"{OPTION}{name}")
        if outline.given(f"{OPTION}cuda_graph_impl") == "full_iteration":  # d98e8a64 transformer_config.py:2967
            puts.put("fine_grained_offloading_max_inflight_offloads", 1, f"{OPTION}{FINE}")
