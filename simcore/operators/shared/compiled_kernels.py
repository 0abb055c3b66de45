"""Kernels of a dense decoder block as Inductor writes them: what each allocates, reads and writes.

`compiled_block.py` says in which order they run and what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.operators.shared.ring_attention import Ring
from simcore.recording.kernel_shape import shape_of, shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["REPLAYED", "Code", "CompiledBlock"]

KEPT: Final = {
    "none": frozenset({"norm1", "wq", "wk", "q", "k", "wv", "attention", "log_sum_exp", "wo", "norm2",
                       "w1", "w3", "product"}),
    "per_op": frozenset({"wq", "wv", "attention", "log_sum_exp", "w1"}),  # the seventh product, w2, is not needed again
    "full": frozenset[str](),
}
"""Tensors that a block keeps beside its input, by what is checkpointed inside."""
REPLAYED: Final = KEPT["none"] - {"product"}
"""Tensors that backward of a block that kept nothing makes before it begins; the product comes with its gradients."""


@dataclass(frozen=True, slots=True)
class CompiledBlock:
    """A block as it is compiled.

    `mixer`: its attention; `linears`: modules of the linears `wq`, `wk`, `wv`, `wo` and, of the MLP's gate, output and
    up, `w1`, `w2`, `w3`. `checkpoint`: what is checkpointed inside of the compiled part, a key of `KEPT`. `fp8`: the
    linears compute in fp8; `scales_rows`: with a scale a row, see [Note: a scale a row] in `compiled_block.py`.
    `by_complex`: heads are rotated by complex products, which are not fused. `repeats`: number
    of copies of each key and value that attention gets. `pipelined`: products of `tp` ranks run in pieces beside their
    collective, see [Note: asynchronous tensor parallelism] in `compiled_block.py`.
    """

    mixer: Attention
    linears: Mapping[str, str]
    checkpoint: str
    fp8: bool = False
    scales_rows: bool = False
    by_complex: bool = False
    repeats: int = 1
    pipelined: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Kernels of one block, each of which writes new buffers."""

    tape: Tape
    run: LayerWorkload
    block: CompiledBlock

    @property
    def mixer(self) -> Attention:
        return self.block.mixer

    @property
    def fp8(self) -> bool:
        return self.block.fp8

    @property
    def kept(self) -> frozenset[str]:
        """Names of the tensors that forward keeps for backward.

        With checkpointing per operator these include the scattered output of `wo` (`_op_sac_save_list`).

        Heads before rotation are kept only where their norm's backward reads them.
        """
        names = KEPT[self.block.checkpoint]
        if names == KEPT["per_op"] and self.run.tp > 1:
            return names | {"wo"}
        return names - {"wq", "wk"} if names >= REPLAYED and not self.mixer.qk_norm else names

    @property
    def kernel(self) -> Kernel:
        return Kernel.FP8_GEMM if self.fp8 else Kernel.GEMM

    def weight(self, name: str) -> Param:
        return self.run.params[f"{self.block.linears[name]}.weight"]

    def fused(self, like: Tensor, name: str, dtype: str = "") -> Tensor:
        """Output of a kernel that reads two tensors of this shape, or one of them twice."""
        return aten.new(self.tape, like.shape, dtype or like.dtype, name, 2 * like.nbytes)

    def copied(self, x: Tensor, name: str, dtype: str = "") -> Tensor:
        """Output of a kernel that reads x once: another order of its rows, another dtype, its heads rotated."""
        return aten.new(self.tape, x.shape, dtype or x.dtype, name, x.nbytes)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """A norm and what is added before it, as the linears read it.

        With a scale a row in fp8 unless it is gathered next: the largest value of a row is found with the norm.
        """
        _column = self.tape.empty((*x.shape[:-1], 1), "fp32", "rstd")
        narrow = self.fp8 and not (self.block.scales_rows and self.run.tp > 1)
        return aten.new(self.tape, x.shape, "fp8" if narrow else x.dtype, name, 2 * x.nbytes, Kernel.NORM)

    def norm_backward(self, grad: Tensor) -> Tensor:
        """The gradient of a norm's input, with that of the residual added."""
        return aten.new(self.tape, grad.shape, grad.dtype, "grad_norm", 3 * grad.nbytes, Kernel.NORM)

    def read(self, x: Tensor, name: str) -> Tensor:
        """Operand that a product reads for x: in fp8 a copy in the order that the product needs, else x itself.

        In fp8 a first pass finds the largest value, a second one casts; that of a row is found in one pass.
        """
        if not self.fp8 or x.dtype == "fp8":
            return x
        return self.copied(x, name, "fp8") if self.block.scales_rows else self.fused(x, name, "fp8")

    def narrow(self, grad: Tensor) -> Tensor:
        """A gradient in fp8, but for a scale a row: its two products cast it by theirs."""
        return grad if self.block.scales_rows else self.read(grad, "grad_fp8")

    def columns(self, x: Tensor, name: str) -> Tensor:
        """Operand of a weight's gradient: with a scale a row cast by columns, whose largest values are found before."""
        return self.fused(x, name, "fp8") if self.block.scales_rows and x.dtype != "fp8" else x

    def norm_columns(self, normed: Tensor, x: Tensor) -> Tensor:
        """A norm's output for gradients of weights: by columns of a scale a row, from its input `x` if it was cast."""
        if not self.block.scales_rows:
            return normed
        if normed.dtype != "fp8":
            return self.columns(normed, "norm_columns")
        return aten.new(self.tape, x.shape, "fp8", "norm_columns", 4 * x.nbytes, Kernel.NORM)

    def empty_copy(self, narrow: Tensor, name: str) -> Tensor | None:
        """Another copy that the kernel before writes of a cast with a scale a row: each product reads its own."""
        if not self.block.scales_rows:
            return None
        return aten.new(self.tape, narrow.shape, "fp8", name)

    def gate_by_rows(self, of_product: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Casts of the MLP's product by columns, of w3's gradient by rows and columns, and of the gate's by rows.

        Largest values by rows, those by columns and the casts are a pass each over the gradient of the product and the
        outputs of w1 and w3; the last writes the gate's gradient over the output of w1.
        """
        tape, shape, passed = self.tape, of_product.shape, 3 * of_product.nbytes
        tape.compute(Kernel.ELEMENTWISE, of_product.numel, passed)
        tape.compute(Kernel.ELEMENTWISE, of_product.numel, passed)
        last = aten.new(tape, shape, "fp8", "grad_w1_fp8", passed + of_product.nbytes)
        product, up_rows, up_columns = (aten.new(tape, shape, "fp8", name) for name in (
            "product_columns", "grad_w3_fp8", "grad_w3_columns"))
        return product, up_rows, up_columns, last

    def through(self, to: dict[str, Tensor], name: str, grad: Tensor, x: Tensor) -> Tensor:
        """Gradient of the input of linear `name`, whose weight's goes into `to`, from those of its output."""
        to[self.weight(name).name] = self.to_weight(name, self.columns(grad, "grad_columns"), x)
        return self.to_input(name, self.read(grad, "grad_fp8") if self.block.scales_rows else grad)

    def largest(self, *rows: int) -> None:
        """Messages of the largest values of rows of which every rank of tp has a part, as many as `rows` each."""
        if self.block.scales_rows and self.run.tp > 1:
            for count in rows:
                self.tape.collective("all_reduce", "tp", 4 * count, "fp32")

    def product(self, name: str, x: Tensor, *, casts: bool = True) -> Tensor:
        """`x @ weight.T`. `casts`: a weight that is not yet in fp8 is cast here."""
        weight = self.weight(name)
        if name in ("wo", "w2"):
            self.largest(x.numel // x.shape[-1], weight.shape[0])
        _copy = self.cast(weight) if casts and weight.dtype != "fp8" else None
        shape = (*x.shape[:-1], weight.shape[0])
        return aten.new(self.tape, shape, self.run.compute, name, x.nbytes + weight.nbytes, self.kernel,
                        2 * x.numel * weight.shape[0])

    def to_input(self, name: str, grad: Tensor, *, casts: bool = True) -> Tensor:
        """`grad @ weight`. `casts`: the weight is copied into the order that the product needs here."""
        weight = self.weight(name)
        if name not in ("wo", "w2"):
            self.largest(grad.numel // grad.shape[-1], weight.shape[1])
        _copy = self.cast(weight, turned=True) if casts else None
        shape = (*grad.shape[:-1], weight.shape[1])
        return aten.new(self.tape, shape, self.run.compute, f"grad_{name}", grad.nbytes + weight.nbytes, self.kernel,
                        2 * grad.numel * weight.shape[1])

    def to_weight(self, name: str, grad: Tensor, x: Tensor) -> Tensor:
        """`grad.T @ x`. With a scale a row the product has none, and a pass over the result multiplies by both."""
        weight = self.weight(name)
        out = aten.new(self.tape, weight.shape, self.run.compute, "grad_weight", grad.nbytes + x.nbytes, self.kernel,
                       2 * grad.numel * x.shape[-1], shape_of(*weight.shape, sums_rows=True))
        if self.block.scales_rows:
            self.tape.compute(Kernel.ELEMENTWISE, out.numel, 2 * out.nbytes)
        return out

    def beside(self, *names: str, turned: bool = False) -> list[Tensor | None]:
        """Copies in fp8 of the weights `names`, for products that run beside the all-gather of their input.

        They are there before it; without such products each is made where it is read. `turned`: also of weights that
        were gathered in fp8, in another order.
        """
        weights = [self.weight(name) for name in names] if self.gathers_beside else []
        return [self.cast(weight) for weight in weights if turned or weight.dtype != "fp8"]

    @property
    def pipelined(self) -> bool:
        return self.block.pipelined and self.run.tp > 1

    @property
    def gathers_beside(self) -> bool:
        """True if products run beside the all-gather of their input, not of what is cast only when it is gathered."""
        return self.pipelined and not self.block.scales_rows

    def cast(self, weight: Param, *, turned: bool = False) -> Tensor | None:
        """A weight in fp8, in the order that a product reads it.

        `turned`: by columns, whose scales take a pass of their own.
        """
        passes = 2 if turned and self.block.scales_rows else 1
        return aten.new(self.tape, weight.shape, "fp8", "weight", passes * weight.nbytes) if self.fp8 else None

    def gathered(self, x: Tensor, name: str, *, in_order: bool = True) -> Tensor:
        """[b, s / tp, k] to [b, s, k] on every rank of tp; of several sequences, in rank order first.

        `in_order`: False leaves the copy into the order of sequences to the caller.
        """
        tp = self.run.tp
        if tp == 1:
            return x
        if self.gathers_beside:
            self.tape.compute(Kernel.COPY, 0, 2 * x.nbytes)  # into memory that the other ranks read
        self.tape.collective("all_gather", "tp", x.nbytes * tp, x.dtype)
        whole = self.tape.empty((x.shape[0], x.shape[1] * tp, x.shape[2]), x.dtype, name)
        is_right = x.shape[0] == 1 or self.gathers_beside or not in_order
        return whole if is_right else self.copied(whole, name)

    def gathered_casts(self, x: Tensor, name: str, products: int = 1) -> tuple[Tensor, list[Tensor]]:
        """`gathered` and what products read of it: itself, or with a scale a row casts, one for each of `products`.

        What was gathered is put in order by the kernel that casts it.
        """
        if not self.block.scales_rows:
            whole = self.gathered(x, name)
            return whole, [whole]
        parts = self.gathered(x, name, in_order=False)
        whole = self.copied(parts, name) if self.run.tp > 1 and x.shape[0] > 1 else parts
        first = whole if whole.dtype == "fp8" else aten.new(self.tape, whole.shape, "fp8", f"{name}_fp8",
                                                            whole.nbytes if whole is parts else 0)
        return whole, [first, *(aten.new(self.tape, whole.shape, "fp8", f"{name}_fp8") for _ in range(products - 1))]

    def gathered_grad(self, grad: Tensor, name: str) -> Tensor:
        """The gradient of a scattered output, gathered, as products read it.

        In fp8 it is cast before (torchao `float8_tensor_parallel.py`, Float8RowwiseParallel), and copied by columns
        for the weight's product.
        """
        if self.block.scales_rows:
            return self.gathered(grad, name)
        if self.run.tp == 1 or not self.fp8:
            return self.read(self.gathered(grad, name), "grad_fp8")
        whole = self.gathered(self.read(grad, f"{name}_fp8"), name)
        return whole if self.pipelined else self.by_columns(whole)

    def back_through(self, name: str, grad: Tensor, label: str) -> tuple[Tensor, Tensor]:
        """(gradient of the scattered output of linear `name`, gathered; gradient of its input)."""
        casts = self.beside(name, turned=True)
        whole = self.gathered_grad(grad, label)
        del grad
        narrow = self.read(whole, "grad_fp8") if self.block.scales_rows else whole
        of_input = self.to_input(name, narrow, casts=not casts)
        del narrow
        return self.by_columns(whole) if self.gathers_beside else whole, of_input

    def by_rows(self, whole: Tensor) -> Tensor:
        """Gathered rows, sequence behind sequence, as the product of a weight's gradient reads them.

        It lies by position first, so that of several sequences it is copied; in fp8 `by_columns` does that.
        """
        beside = self.gathers_beside and not self.fp8
        return self.copied(whole, "rows") if beside and whole.shape[0] > 1 else whole

    def by_columns(self, whole: Tensor) -> Tensor:
        """`whole`, which in fp8 was copied by columns for the product of a weight's gradient."""
        _columns = self.copied(whole, "grad_fp8") if self.fp8 else None
        return whole

    def scattered(self, x: Tensor, name: str, *, of_product: bool = False) -> Tensor:
        """Partial sums [b, s, k], copied in rank order, to [b, s / tp, k].

        `of_product`: those of a single product, which if pipelined are sent as it runs, and added up here.
        """
        tp, (batch, seq, width) = self.run.tp, x.shape
        if tp == 1:
            return x
        beside = of_product and self.pipelined
        pieces = x if beside else self.copied(x, name)
        del x
        self.tape.collective("reduce_scatter", "tp", pieces.nbytes, pieces.dtype)
        if beside:
            return aten.new(self.tape, (batch, seq // tp, width), pieces.dtype, name, pieces.nbytes)
        return self.tape.empty((batch, seq // tp, width), pieces.dtype, name)

    def turned(self, x: Tensor, name: str, repeats: int = 1) -> Tensor:
        """Heads, rotated and repeated: one kernel, with their norm. Complex products are left to PyTorch, over fp32."""
        if not self.block.by_complex:
            return self.repeated(x, name, repeats)
        wide = self.copied(x, "rotary_in", "fp32")
        out = self.copied(wide, "rotary")
        del wide
        return self.repeated(out, name, repeats, x.dtype)

    def repeated(self, x: Tensor, name: str, repeats: int, dtype: str = "") -> Tensor:
        """Copy of `x` [b, s, k] as [b, s, k * repeats], in `dtype` ("": its own)."""
        shape = (*x.shape[:-1], x.shape[-1] * repeats)
        return aten.new(self.tape, shape, dtype or x.dtype, name, x.nbytes)

    def added_up(self, grad: Tensor, name: str) -> Tensor:
        """Gradient of keys or values that were repeated: copies are added up."""
        if self.block.repeats == 1:
            return grad
        shape = (*grad.shape[:-1], grad.shape[-1] // self.block.repeats)
        return aten.new(self.tape, shape, grad.dtype, name, grad.nbytes)

    def attention(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Flash attention of all heads: output and log-sum-exp. Of a ring's, the output is copied by token."""
        if self.run.cp > 1:
            merged, rows = self.ring(q).forward(self.tape)
            return aten.new(self.tape, q.shape, q.dtype, "attention", merged.nbytes, Kernel.COPY), rows
        flops = 2 * self.run.pairs * q.shape[-1]
        moved = q.nbytes + 2 * self.key_bytes
        return (aten.new(self.tape, q.shape, q.dtype, "attention", moved, Kernel.ATTENTION, flops,
                         shape_of_heads(*self.heads_of(q))),
                self.tape.empty((q.shape[0], q.shape[1], q.shape[2] // self.mixer.head_dim), "fp32", "log_sum_exp"))

    def heads_of(self, q: Tensor) -> tuple[int, int, int]:
        """(elements of a key, of a value, number of queries of all heads)."""
        return self.mixer.head_dim, self.mixer.head_dim, q.numel // self.mixer.head_dim

    def to_heads(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values."""
        if self.run.cp > 1:
            of_q, of_k, of_v = self.ring(q).backward(self.tape, [])
            assert of_q is not None
            assert of_k is not None
            assert of_v is not None
            return of_q.view(*q.shape), of_k.view(*k.shape), of_v.view(*k.shape)
        to_q, to_k, to_v = (aten.new(self.tape, x.shape, x.dtype, "grad_attention") for x in (q, k, k))
        self.tape.compute(Kernel.ATTENTION, 5 * self.run.pairs * q.shape[-1], 3 * (q.nbytes + 2 * self.key_bytes),
                          shape_of_heads(*self.heads_of(q), backward=True))
        return to_q, to_k, to_v

    def ring(self, q: Tensor) -> Ring:
        """Context parallel attention, as without torch.compile."""
        dim, (batch, seq, width) = self.mixer.head_dim, q.shape
        key = (batch, seq, self.block.repeats * self.mixer.kv_size // self.run.tp // dim, dim)
        return Ring(self.run.cp, ((batch, seq, width // dim, dim), key, key), q.dtype)

    @property
    def key_bytes(self) -> int:
        """Size in bytes of the keys that attention gets on this rank, in 16 bits."""
        return 2 * self.run.tokens * self.block.repeats * self.mixer.kv_size // self.run.tp
