"""Linear layers inside a compiled layer of NeMo Automodel: kernels, adapters, and collectives of DTensor's plan.

[Note: products in a compiled layer] `TPLinear` and `LinearLoRA` multiply by `torch.bmm` where a compiler traces them
(nemo-automodel 0.7.0 `shared/tp_linear.py`, tp_linear_forward), so that over tp a weight's gradient is made sequence by
sequence and then summed. An adapter runs as two products beside the base's; its output is added in the kernel that
reads both (`_peft/lora.py`, LinearLoRA.forward: no function of autograd's own where a compiler runs). Over tp the
output of a layer whose inputs are split is summed over ranks twice if it has an adapter: the adapter's alone, then a
share of it with the base's. B of such a layer takes partial low-rank rows: they are scattered, or B is gathered for
every sequence, whichever moves fewer bytes, as DTensor reckons.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.operators.shared.aten import new
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["Later", "Linears", "Made"]

Made = dict[str, Tensor]
"""Tensors by name; `Linears` adds low-rank rows as `{linear}.low`, already scaled."""

Later = tuple[str, Tensor, Tensor]
"""A weight's gradient that is made later: path of the linear, gradient of its output, its input."""


@dataclass(frozen=True, slots=True)
class Linears:
    """Products of one layer's linears, each of which writes new buffers. `to`: gradients of parameters, by name."""

    tape: Tape
    run: LayerWorkload
    to: Made

    @property
    def tp(self) -> int:
        return self.run.tp

    def weight(self, path: str) -> Param:
        return self.run.params[f"{path}.weight"]

    def adapters(self, path: str) -> tuple[Param, Param] | None:
        """LoRA matrices (A, B) of the linear at `path`; None if it has no adapter."""
        a = self.run.params.get(f"{path}.lora_A.weight")
        return None if a is None else (a, self.run.params[f"{path}.lora_B.weight"])

    # ---- forward ----------------------------------------------------------------------------------------------------
    def column(self, path: str, x: Tensor, lows: Made) -> list[Tensor]:
        """Output of the linear at `path`, whose outputs are split, and the adapter's part if it has one."""
        base, pair = self._product(x, self.weight(path), path), self.adapters(path)
        if pair is None:
            return [base]
        low = self._product(x, pair[0], "lora_low")
        if self.tp > 1:
            low = self._gathered(low)
        self._in_place(low)
        lows[f"{path}.low"] = low
        return [base, self._product(low, pair[1], path)]

    def row(self, path: str, x: Tensor, lows: Made) -> list[Tensor]:
        """Output of the linear at `path`, whose inputs are split, summed over tp; with one rank the adapter's apart."""
        base, pair = self._product(x, self.weight(path), path), self.adapters(path)
        if pair is None:
            return self._summed(base)
        low = self._product(x, pair[0], "lora_low")
        self._in_place(low)
        lows[f"{path}.low"] = low
        if self.tp == 1:
            return [base, self._product(low, pair[1], path)]
        part = self._of_partial_rows(low, pair[1], path)
        self._summed(part)
        self._in_place(base, part)
        return self._summed(base)

    def _of_partial_rows(self, low: Tensor, b: Param, path: str) -> Tensor:
        tape, (batch, seq, rank), (features, own) = self.tape, low.shape, b.shape
        if seq <= features:
            turned = new(tape, low.shape, low.dtype, "lora_low", low.nbytes)
            tape.collective("reduce_scatter", "tp", low.nbytes, low.dtype)
            mine = tape.empty((batch, seq, own), low.dtype, "lora_low")
            del turned
            return self._product(mine, b, path)
        cut = new(tape, (batch, own, features), b.dtype, "lora_b", b.nbytes)
        tape.collective("all_gather", "tp", cut.nbytes * self.tp, b.dtype)
        parts = tape.empty((batch, rank, features), b.dtype, "lora_b")
        del cut
        whole = new(tape, parts.shape, b.dtype, "lora_b", parts.nbytes)
        del parts
        shape = (batch, seq, features)
        return new(tape, shape, low.dtype, path, low.nbytes + whole.nbytes, Kernel.GEMM,
                   2 * low.numel * features)

    # ---- backward ---------------------------------------------------------------------------------------------------
    def back_column(self, path: str, grad: Tensor, held: list[Tensor], lows: Made, *, is_last: bool = False,
                    later: list[Later] | None = None) -> list[Tensor]:
        """Gradients of the input, one of base and one of an adapter, summed into one over tp; those of weights too.

        `held`: the input, or nothing where no weight reads it; if `is_last` it is dropped when weights have read it.
        `later`: gets the base weight's gradient, which is then made by `make`.
        """
        weight, pair = self.weight(path), self.adapters(path)
        if later is not None:
            later.append((path, grad, held[0]))
        elif held:
            self.make(path, grad, held[0])
        low = self._back_adapter(pair, path, grad, held[0], lows) if pair is not None else None
        if is_last:
            held.clear()
        if pair is None or low is None:
            return self._summed(self._to_input(weight, grad, f"grad_{path}"))
        found = [self._to_input(pair[0], low, f"grad_{path}")]
        del low
        found.append(self._to_input(weight, grad, f"grad_{path}"))
        if self.tp == 1:
            return found
        self._in_place(found[0], found.pop())
        return self._summed(found[0])

    def _back_adapter(self, pair: tuple[Param, Param], path: str, grad: Tensor, x: Tensor, lows: Made) -> Tensor:
        """Gradients of an adapter's weights; returns that of its low-rank rows, this rank's columns."""
        a, b = pair
        self._to_weight(b, grad, lows.pop(f"{path}.low"))
        low = self._to_input(b, grad, "grad_lora_low")
        self._in_place(low)
        if self.tp > 1:
            low = self._scattered(low, a.shape[0])
        self._to_weight(a, low, x)
        return low

    def make(self, path: str, grad: Tensor, x: Tensor) -> None:
        """Gradients of the weight and the bias of the linear at `path`, where they are trained."""
        self._to_weight(self.weight(path), grad, x)
        self._to_bias(path, grad)

    def reads(self, *paths: str) -> bool:
        """True if backward of one of the linears reads its input."""
        return any(self.weight(path).trainable or self.adapters(path) is not None for path in paths)

    def through_row(self, path: str, grad: Tensor, lows: Made) -> list[Tensor]:
        """Gradients of the input of a row-split linear: one of the base, one of an adapter.

        The adapter's low-rank gradient stays as `{path}.grad` among `lows`, for `back_row`.
        """
        weight, pair = self.weight(path), self.adapters(path)
        if pair is None:
            return [self._to_input(weight, grad, f"grad_{path}")]
        low = self._to_input(pair[1], grad, "grad_lora_low")
        self._in_place(low)
        if self.tp > 1:
            low = self._gathered(low)
        lows[f"{path}.grad"] = low
        part = self._to_input(pair[0], low, f"grad_{path}")
        return [part, self._to_input(weight, grad, f"grad_{path}")]

    def low_again(self, path: str, x: Tensor, lows: Made) -> None:
        """Low-rank rows of a row-split linear, which a replay did not make."""
        pair = self.adapters(path)
        if pair is not None and f"{path}.low" not in lows:
            lows[f"{path}.low"] = self._product(x, pair[0], "lora_low")
            self._in_place(lows[f"{path}.low"])

    def back_row(self, path: str, grad: Tensor, x: Tensor | None, lows: Made) -> None:
        """Gradients of the weights of a row-split linear; B's is whole over tp, a partial sum. `x`: None if unread."""
        pair = self.adapters(path)
        if x is None:
            return
        self.make(path, grad, x)
        if pair is not None:
            a, b = pair
            self._to_weight(b, grad, lows.pop(f"{path}.low"))
            self._to_weight(a, lows.pop(f"{path}.grad"), x)

    # ---- kernels ----------------------------------------------------------------------------------------------------
    def _product(self, x: Tensor, weight: Param, name: str) -> Tensor:
        return new(self.tape, (*x.shape[:-1], weight.shape[0]), x.dtype, name, x.nbytes + weight.nbytes,
                   Kernel.GEMM, 2 * x.numel * weight.shape[0])

    def _to_input(self, weight: Param, grad: Tensor, name: str) -> Tensor:
        return new(self.tape, (*grad.shape[:-1], weight.shape[1]), grad.dtype, name, grad.nbytes + weight.nbytes,
                   Kernel.GEMM, 2 * grad.numel * weight.shape[1])

    def _to_weight(self, weight: Param, grad: Tensor, x: Tensor) -> None:
        """Adds the gradient [features, inputs] of `weight`; see [Note: products in a compiled layer]."""
        if not weight.trainable:
            return
        tape, batch, shape = self.tape, grad.shape[0], (grad.shape[-1], x.shape[-1])
        moved, flops = grad.nbytes + x.nbytes, 2 * grad.numel * x.shape[-1]
        if self.tp == 1 or batch == 1:
            self.to[weight.name] = new(tape, shape, grad.dtype, "grad_weight", moved, Kernel.GEMM, flops,
                                       shape_of(*shape, sums_rows=True))
            return
        each = new(tape, (batch, *shape), grad.dtype, "grad_weight", moved, Kernel.GEMM, flops,
                   shape_of(*shape, sums_rows=True))
        self.to[weight.name] = new(tape, shape, grad.dtype, "grad_weight", each.nbytes)

    def _to_bias(self, path: str, grad: Tensor) -> None:
        bias = self.run.params.get(f"{path}.bias")
        if bias is not None and bias.trainable:
            self.to[bias.name] = new(self.tape, bias.shape, grad.dtype, "grad_bias", grad.nbytes)

    def _in_place(self, x: Tensor, *read: Tensor) -> None:
        """A kernel that scales `x`, or adds `read` to it, where it lies."""
        self.tape.compute(Kernel.ELEMENTWISE, x.numel, 2 * x.nbytes + sum(one.nbytes for one in read))

    def _summed(self, x: Tensor) -> list[Tensor]:
        """`x`, summed over tp where it lies."""
        if self.tp > 1:
            self.tape.collective("all_reduce", "tp", x.nbytes, x.dtype)
        return [x]

    def _gathered(self, own: Tensor) -> Tensor:
        """Columns of all ranks of tp, which come rank behind rank and are joined."""
        tape, shape = self.tape, (*own.shape[:-1], own.shape[-1] * self.tp)
        tape.collective("all_gather", "tp", own.nbytes * self.tp, own.dtype)
        parts = tape.empty(shape, own.dtype, "lora_low")
        return new(tape, shape, own.dtype, "lora_low", parts.nbytes)

    def _scattered(self, partial: Tensor, own: int) -> Tensor:
        """This rank's columns, `own` of them, of sums over tp, copied in rank order first."""
        tape = self.tape
        parts = new(tape, partial.shape, partial.dtype, "grad_lora_low", partial.nbytes)
        del partial
        tape.collective("reduce_scatter", "tp", parts.nbytes, parts.dtype)
        return tape.empty((*parts.shape[:-1], own), parts.dtype, "grad_lora_low")
