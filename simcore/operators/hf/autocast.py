"""Products under autocast: inputs and weights of a wider type are cast for each.

[Note: what autocast keeps]
torch 2.13 `aten/src/ATen/autocast_mode.cpp`, cached_cast: the copy of a trained fp32 parameter is kept until the region
ends, so one copy serves all its uses; that of a frozen one and of any other tensor dies with its last user. The region
is the model's forward with its loss (accelerate 1.15 `accelerator.py`, prepare_model), and in a replay the layer
(`torch/utils/checkpoint.py`). Linears and SDPA compute in the narrow type; embeddings, sums and products of elements
take what they get, norms and losses are fp32 in the modelling code already. LayerNorm and powers are cast up to fp32.
"""

from __future__ import annotations

from collections.abc import Iterable

from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["is_autocast", "layer_norm", "narrowed", "narrowed_weight", "product", "set_apart"]


def is_autocast(run: LayerWorkload) -> bool:
    """True if forward runs under torch.autocast to the compute dtype."""
    return HfOptions.of(run.options).autocast


def narrowed(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`x` as an operator reads it: cast to the compute dtype under autocast, otherwise `x` itself."""
    return aten.cast(tape, x, run.compute) if is_autocast(run) else x


def product(tape: Tape, run: LayerWorkload, x: Tensor, weight: aten.Operand, label: str,
            bias: Param | None = None) -> Tensor:
    """`F.linear(x, weight, bias)`: [..., n] for `x` [..., k] and `weight` [n, k].

    Under autocast input, weight and bias are cast before. `label`: name of the output's storage.
    """
    if not is_autocast(run):
        return aten.linear(tape, x, weight, label, bias=bias)
    short = None if bias is None else narrowed_weight(tape, run, bias)  # arguments are cast from the last to the first
    narrow = narrowed_weight(tape, run, weight)
    return aten.linear(tape, aten.cast(tape, x, run.compute), narrow, label, bias=short)


def layer_norm(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, bias: Param) -> Tensor:
    """`F.layer_norm` of `x`, in its shape: under autocast all is cast to fp32, and so is the result."""
    if not is_autocast(run):
        return aten.layer_norm(tape, x, weight, bias)
    wide_bias = aten.cast(tape, bias, "fp32")
    wide_weight = aten.cast(tape, weight, "fp32")
    return aten.layer_norm(tape, aten.cast(tape, x, "fp32"), wide_weight, wide_bias)


def narrowed_weight(tape: Tape, run: LayerWorkload, weight: aten.Operand) -> aten.Operand:
    """`weight` as an operator under autocast reads it: [Note: what autocast keeps]."""
    if isinstance(weight, Tensor) or weight.dtype == run.compute or not weight.trainable:
        return aten.cast(tape, weight, run.compute)
    if weight.name not in tape.casts:
        tape.casts[weight.name] = aten.cast(tape, weight, run.compute)
    copy: aten.Operand = tape.casts[weight.name]
    return copy


def set_apart(tape: Tape, names: Iterable[str], number: int) -> None:
    """Renames the copies of trained parameters `names` that autocast keeps, as those of module `number` of many alike.

    The next module's parameters have the same names here, and copies of their own.
    """
    for name in names:
        if name in tape.casts:
            tape.casts[f"{name} of {number}"] = tape.casts.pop(name)
