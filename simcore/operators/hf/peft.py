"""PEFT's adapters: of a linear layer (LoRA with and without dropout, DoRA), and of experts that are one parameter.

[Note: PEFT's adapters]
PEFT 0.21.2 `tuners/lora/layer.py`, Linear.forward: the input is cast to the adapter's type, under autocast too; then
`base(x) + lora_B(lora_A(dropout(x))) * scaling`, cast back. `tuners/lora/bnb.py`, Linear4bit and Linear8bitLt: under
autocast nothing is cast. Dropout is torch's one kernel (2.13 `aten/src/ATen/native/Dropout.cpp`, native_dropout): every
adapted linear has its own, so it keeps a copy of its input for `lora_A`, and the mask, a byte an element, where the
input takes a gradient.

`tuners/lora/dora.py`, DoraLinearLayer.forward: the product `lora_B(lora_A(identity))` and the base's weight, in 4 bits
made whole first, give the norm of each row of the sum, which takes no gradient; all of them live until the function
returns. Magnitudes over norms scale both the base's output and the adapter's, so both are kept for backward.
`tuners/lora/variants.py`, DoraLinearVariant.forward: with dropout the base's product runs again on the dropped input,
and keeps its weight: one that was made from 4 bits, or cast, lives until backward.
Scaling is a number: rank-stabilised LoRA has the same kernels.

[Note: PEFT's adapters of parameters]
PEFT 0.21.2 `tuners/lora/layer.py`, ParamWrapper: `lora_A` [r * e, k] and `lora_B` [n, r * e] adapt a weight [e, n, k]
of e experts. While the module's forward runs, the weight is parametrised as `W + scaling * B_e A_e`, one `baddbmm` of
batched factors (_LoraFactorsProxy), outside autocast and in the type of W. torch 2.13 `nn/utils/parametrize.py`,
register_parametrization: evaluates it once to compare shapes, and drops the result; then the module evaluates it where
it first reads the weight, and keeps that copy until its forward is over (`cached`). The product with the copy saves it
for backward: every layer holds a copy of all its experts' weights, and in backward a gradient as large. Wrappers are
nested, the last parameter outermost, so its factors are made first. cuBLAS copies the strided `B` for the product:
these r / k of the weight's bytes are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.operators.hf.autocast import product
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten, dora
from simcore.operators.shared.aten import Grads, Operand, Saved
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import (
    ADAPTER_BACKWARD_BEGIN,
    ADAPTER_BACKWARD_END,
    ADAPTER_FORWARD_BEGIN,
    ADAPTER_FORWARD_END,
)
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["ExpertWeights", "dora_sum", "drops", "has_dora", "lora_part"]

_MAGNITUDE: Final = "lora_magnitude_vector.weight"


def has_dora(run: LayerWorkload, prefix: str) -> bool:
    """True if the adapter of the linear whose parameters begin with `prefix` has a vector of magnitudes."""
    return f"{prefix}{_MAGNITUDE}" in run.params


def lora_part(tape: Tape, run: LayerWorkload, prefix: str, label: str, x: Tensor) -> Tensor:
    """`lora_B(lora_A(dropout(x))) * scaling` of `x` [..., k]: a new tensor [..., n]."""
    return aten.mul_scalar(tape, _up(tape, run, prefix, label, _down(
        tape, run, prefix, label, aten.dropout(tape, x) if drops(run) else x)))


def dora_sum(tape: Tape, run: LayerWorkload, prefix: str, label: str, x: Tensor, base: Tensor,
             whole: Callable[[], Operand]) -> Tensor:
    """`base + DoRA(x)`: a new tensor in the shape of `base` [..., n], in the wider of the types.

    `x`: the input [..., k] in the type in which the adapter takes it. `whole`: makes the base's weight [n, k], which a
    linear of 16 bits has already.
    """
    if drops(run):
        x = aten.dropout(tape, x)
        return aten.add(tape, base, _dora(tape, run, prefix, label, x, None, whole), f"{label}.sum")
    return aten.add(tape, base, _dora(tape, run, prefix, label, x, base, whole), f"{label}.sum")


def drops(run: LayerWorkload) -> bool:
    """True if adapters drop elements of their inputs (lora_dropout above 0)."""
    return run.options.lora_dropout != ""


def _down(tape: Tape, run: LayerWorkload, prefix: str, label: str, x: Tensor) -> Tensor:
    return _factor(tape, run, x, run.params[f"{prefix}lora_a.weight"], f"{label}.lora_a")


def _up(tape: Tape, run: LayerWorkload, prefix: str, label: str, low: Tensor) -> Tensor:
    return _factor(tape, run, low, run.params[f"{prefix}lora_b.weight"], f"{label}.lora_b")


def _factor(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, label: str) -> Tensor:
    """Product with one matrix of an adapter, which may be a data-parallel unit of its own, with hooks around it.

    Its gradient is complete as soon as it is made, before that of the input (AccumulateGrad's hook).
    """
    if not HfOptions.of(run.options).adapter_units:
        return product(tape, run, x, weight, label)

    def begins(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.mark(ADAPTER_BACKWARD_BEGIN)
        return [grads.pop()]

    def ends(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.mark(ADAPTER_BACKWARD_END)
        return [grads.pop()]

    tape.mark(ADAPTER_FORWARD_BEGIN)
    gathered = Tensor(None, weight.shape, weight.dtype, tape.node((weight,), (), ends))
    y = product(tape, run, x, gathered, label)
    y.node = tape.node((y,), (), begins)
    tape.mark(ADAPTER_FORWARD_END)
    return y


def _dora(tape: Tape, run: LayerWorkload, prefix: str, label: str, x: Tensor, base: Tensor | None,
          whole: Callable[[], Operand]) -> Tensor:
    """`(m / norm - 1) * base + m / norm * lora * scaling`; without `base` its product runs on `x`."""
    magnitude, bias = run.params[f"{prefix}{_MAGNITUDE}"], run.params.get(f"{prefix}bias")
    both = aten.cast(tape, _of_identity(tape, run, prefix, label, x.shape[-1]), x.dtype)
    weight = whole()
    weight = weight if weight.dtype == x.dtype else aten.cast(tape, weight, x.dtype)
    norm = dora.norms(tape, weight, both, label)
    scale = dora.ratio(tape, magnitude, norm, label).view(1, magnitude.numel)
    part = _up(tape, run, prefix, label, _down(tape, run, prefix, label, x))
    if base is None:
        base = product(tape, run, x, weight, f"{label}.dropped")
    elif bias is not None:
        base = dora.without_bias(tape, base, bias, label)
    return dora.scaled_sum(tape, scale, base, part, label)


def _of_identity(tape: Tape, run: LayerWorkload, prefix: str, label: str, columns: int) -> Tensor:
    """`lora_B(lora_A(identity)).T`, in an identity of the adapter's type."""
    identity = aten.new(tape, (columns, columns), run.params[f"{prefix}lora_a.weight"].dtype, f"{label}.identity")
    low = _down(tape, run, prefix, f"{label}.of_identity", identity)
    return _up(tape, run, prefix, f"{label}.of_identity", low)


class ExpertWeights:
    """Weights of a layer's routed experts as its products read them, for one forward pass of the module `at`.

    `parts`: last names of the parameters, in order of registration; `whole`: makes one that is packed in 4 bits.
    """

    def __init__(self, tape: Tape, run: LayerWorkload, at: str, parts: tuple[str, ...],
                 whole: Callable[[Tape, LayerWorkload, Param], Tensor]) -> None:
        self._tape, self._run, self._at, self._whole = tape, run, at, whole
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}
        self._merged: dict[str, Tensor] = {}
        for part in reversed(parts):
            if f"{at}.{part}.lora_a.weight" in run.params:
                self._factors[part] = self._factors_of(part)
                self._sum(part)

    def __getitem__(self, part: str) -> Operand:
        """The parameter `part` [e, n, k], or what is made of it, which lives as long as this object.

        That is the sum of it and its adapter, or the whole of one that is packed in 4 bits.
        """
        weight = self._run.params[f"{self._at}.{part}"]
        if part not in self._factors and weight.packed is None:
            return weight
        if part not in self._factors and part not in self._merged:
            self._merged[part] = self._whole(self._tape, self._run, weight)
        if part not in self._merged:
            self._merged[part] = self._sum(part)
        return self._merged[part]

    def _factors_of(self, part: str) -> tuple[Tensor, Tensor]:
        """(`B` [e, n, r], `A` [e, r, k]) in the type of the weight."""
        weight = self._run.params[f"{self._at}.{part}"]
        a, b = (self._run.params[f"{self._at}.{part}.lora_{end}.weight"] for end in "ab")
        experts, rank = weight.shape[0], a.shape[0] // weight.shape[0]
        low = aten.reshaped(self._tape, a, (experts, rank, a.shape[1]))
        high = aten.permuted(self._tape, b, (experts, b.shape[0], rank))
        high = aten.cast(self._tape, high, weight.dtype)
        return high, aten.cast(self._tape, low, weight.dtype)

    def _sum(self, part: str) -> Tensor:
        high, low = self._factors[part]
        return aten.baddbmm(self._tape, self._run.params[f"{self._at}.{part}"], high, low, f"experts.{part}.merged")
