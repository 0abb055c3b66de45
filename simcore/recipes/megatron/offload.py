"""Activations on the host in Megatron's arguments: both ways, from fields and from a scenario."""

from __future__ import annotations

from typing import Final

from simcore.recipes.megatron.argument_puts import ArgumentPuts
from simcore.recipes.megatron.fields import Writer

__all__ = ["put_offload", "write_offload"]

_KEY: Final = "training.offload.activations"
_LAYERS: Final = "cpu_offloading_num_layers"
_OPTION: Final = "framework_options."


def write_offload(writer: Writer) -> None:
    """Writes which layers' saved tensors wait on the host (training/arguments.py: where their number is above 0)."""
    count = writer.fields.integer(_LAYERS)
    if count.value:
        writer.write(_KEY, "host", count, rule=f"--{_LAYERS.replace('_', '-')} is above 0")
        writer.write(f"{_OPTION}{_LAYERS}", count.value, count)
    else:
        writer.use(count)


def put_offload(puts: ArgumentPuts) -> None:
    """Puts the argument for layers whose saved tensors wait on the host."""
    outline = puts.outline
    count, space = outline.given(f"{_OPTION}{_LAYERS}"), outline.given(_KEY)
    if count is not None and space == "host":
        puts.put(_LAYERS, count, f"{_OPTION}{_LAYERS}", _KEY)
