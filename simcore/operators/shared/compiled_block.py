"""A dense decoder block under torch.compile (torch 2.13): what AOTAutograd keeps and what Inductor allocates.

The block is one autograd node. What it keeps is what the min-cut partitioner chose (torch/_functorch/partitioners.py):
its input, and without checkpointing the inputs of products and of attention; per operator every second product and
attention's output; whole, nothing else. Pointwise chains and norms are one kernel with one output. Backward makes the
rest again, the MLP's first. Measured by `tests/truth/probe_titan_compiled.py` and `probe_layer_compiled.py`, which run
Inductor's own code.

In fp8 (torchao 0.18 `float8/float8_linear.py`, one scale a tensor) the same is kept, in bf16: the partitioner casts
again. What a product reads is cast into one byte an element, in the order that it wants, weights too unless they were
gathered so; gradients of weights are bf16. Scales weigh a few bytes and are left out.

Assumed: Inductor's CUDA backend cuts and orders kernels as its CPU one does, which was measured. It may cast weights
later, so casts are here made where they are read. Not measured: context parallelism, whose ring is the eager one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.operators.shared.ring_attention import Ring
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["CompiledBlock", "compiled_block"]

Grads = list[Tensor | None]
Made = dict[str, Tensor]
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
    linears compute in fp8. `by_complex`: heads are rotated by complex products, which are not fused.
    """

    mixer: Attention
    linears: Mapping[str, str]
    checkpoint: str
    fp8: bool = False
    by_complex: bool = False


def compiled_block(tape: Tape, run: LayerWorkload, block: CompiledBlock, x: Tensor, *tables: Tensor) -> Tensor:
    """Output of a compiled `block` for `x` [b, s / tp, hidden], in x's shape: one autograd node.

    `tables`: rotary tables that are given to it and kept.
    """
    code, params, needs = _Code(tape, run, block), list(run.params.values()), x.node is not None

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        assert grad is not None
        made = dict(zip(("x", *table_names, *kept_names), saved, strict=True))
        saved.clear()
        _tables = [made.pop(name) for name in table_names]
        to = _backward(code, grad, made)
        return [to.pop("x") if needs else None, *(to[param.name] for param in params)]

    table_names = tuple(f"table{number}" for number in range(len(tables)))
    kept: Made = {}
    node = tape.node((x, *params), (x, *tables), backward)
    out = _forward(code, code.kept if node is not None else frozenset(), kept, x)
    kept_names = tuple(kept)
    tape.save(node, *kept.values())
    out.node = node
    return out


# ---- kernels --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Code:
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
        """One pass over a tensor of this shape."""
        return aten.new(self.tape, like.shape, dtype or like.dtype, name, 2 * like.nbytes)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """A norm and what is added before it, as the linears read it."""
        _column = self.tape.empty((*x.shape[:-1], 1), "fp32", "rstd")
        return aten.new(self.tape, x.shape, "fp8" if self.fp8 else x.dtype, name, 2 * x.nbytes, Kernel.NORM)

    def norm_backward(self, grad: Tensor) -> Tensor:
        """The gradient of a norm's input, with that of the residual added."""
        return aten.new(self.tape, grad.shape, grad.dtype, "grad_norm", 3 * grad.nbytes, Kernel.NORM)

    def read(self, x: Tensor, name: str) -> Tensor:
        """Operand that a product reads for x: in fp8 a copy in the order that the product needs, else x itself."""
        return self.fused(x, name, "fp8") if self.fp8 else x

    def product(self, name: str, x: Tensor) -> Tensor:
        """`x @ weight.T`."""
        weight = self.weight(name)
        _copy = self.cast(weight) if weight.dtype != "fp8" else None
        shape = (*x.shape[:-1], weight.shape[0])
        return aten.new(self.tape, shape, self.run.compute, name, x.nbytes + weight.nbytes, self.kernel,
                        2 * x.numel * weight.shape[0])

    def to_input(self, name: str, grad: Tensor) -> Tensor:
        """`grad @ weight`."""
        weight = self.weight(name)
        _copy = self.cast(weight)
        shape = (*grad.shape[:-1], weight.shape[1])
        return aten.new(self.tape, shape, self.run.compute, f"grad_{name}", grad.nbytes + weight.nbytes, self.kernel,
                        2 * grad.numel * weight.shape[1])

    def to_weight(self, name: str, grad: Tensor, x: Tensor) -> Tensor:
        """`grad.T @ x`."""
        weight = self.weight(name)
        return aten.new(self.tape, weight.shape, self.run.compute, "grad_weight", grad.nbytes + x.nbytes, self.kernel,
                        2 * grad.numel * x.shape[-1])

    def cast(self, weight: Param) -> Tensor | None:
        """A weight in fp8, in the order that a product reads it."""
        return aten.new(self.tape, weight.shape, "fp8", "weight", weight.nbytes) if self.fp8 else None

    def gathered(self, x: Tensor, name: str) -> Tensor:
        """[b, s / tp, k] to [b, s, k] on every rank of tp; of several sequences, in rank order first."""
        tp = self.run.tp
        if tp == 1:
            return x
        self.tape.collective("all_gather", "tp", x.nbytes * tp, x.dtype)
        whole = self.tape.empty((x.shape[0], x.shape[1] * tp, x.shape[2]), x.dtype, name)
        return whole if x.shape[0] == 1 else self.fused(whole, name)

    def scattered(self, x: Tensor, name: str) -> Tensor:
        """Partial sums [b, s, k], copied in rank order, to [b, s / tp, k]."""
        tp, (batch, seq, width) = self.run.tp, x.shape
        if tp == 1:
            return x
        copy = self.fused(x, name)
        del x
        self.tape.collective("reduce_scatter", "tp", copy.nbytes, copy.dtype)
        return self.tape.empty((batch, seq // tp, width), copy.dtype, name)

    def turned(self, x: Tensor, name: str) -> Tensor:
        """Rotated heads: one kernel, with their norm if there is one. Complex products are PyTorch's own, over fp32."""
        if not self.block.by_complex:
            return self.fused(x, name)
        wide = self.fused(x, "rotary_in", "fp32")
        out = self.fused(wide, "rotary")
        del wide
        return self.fused(out, name, x.dtype)

    def attention(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Flash attention of all heads: output and log-sum-exp. Of a ring's, the output is copied by token."""
        if self.run.cp > 1:
            merged, rows = self.ring(q).forward(self.tape)
            return aten.new(self.tape, q.shape, q.dtype, "attention", merged.nbytes, Kernel.COPY), rows
        flops = 2 * self.run.pairs * q.shape[-1]
        moved = q.nbytes + 2 * self.key_bytes
        return (aten.new(self.tape, q.shape, q.dtype, "attention", moved, Kernel.ATTENTION, flops,
                         shape_of_heads(self.mixer.head_dim, self.mixer.head_dim)),
                self.tape.empty((q.shape[0], q.shape[1], q.shape[2] // self.mixer.head_dim), "fp32", "log_sum_exp"))

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
                          shape_of_heads(self.mixer.head_dim, self.mixer.head_dim, backward=True))
        return to_q, to_k, to_v

    def ring(self, q: Tensor) -> Ring:
        """Context parallel attention, as without torch.compile."""
        dim, (batch, seq, width) = self.mixer.head_dim, q.shape
        key = (batch, seq, self.mixer.kv_size // self.run.tp // dim, dim)
        return Ring(self.run.cp, ((batch, seq, width // dim, dim), key, key), q.dtype)

    @property
    def key_bytes(self) -> int:
        """Size in bytes of this rank's keys, in 16 bits."""
        return 2 * self.run.tokens * self.mixer.kv_size // self.run.tp


# ---- forward --------------------------------------------------------------------------------------------------------
def _forward(code: _Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    """The output; `kept` gets what `keeps` names. Both halves' outputs are added over one of them that is not kept."""
    mixed = _attention(code, keeps, kept, x)
    hidden = code.scattered(code.product("w2", _product(code, keeps, kept, x)), "feed_forward_out")
    return hidden if "wo" in keeps else mixed


def _keep(keeps: frozenset[str], kept: Made, name: str, made: Tensor) -> Tensor:
    if name in keeps:
        kept[name] = made
    return made


def _attention(code: _Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    q, k, v = _heads(code, keeps, kept, code.norm(x, "norm1"))
    _keep(keeps, kept, "wv", v)
    q, k = _keep(keeps, kept, "q", code.turned(q, "q")), _keep(keeps, kept, "k", code.turned(k, "k"))
    out, log = code.attention(q)
    _keep(keeps, kept, "attention", out)
    _keep(keeps, kept, "log_sum_exp", log)
    del q, k, v, log
    return _keep(keeps, kept, "wo", _mixed(code, out))


def _mixed(code: _Code, heads: Tensor) -> Tensor:
    """Tensor that attention adds to the residual stream: the output projection of `heads`, scattered."""
    return code.scattered(code.product("wo", code.read(heads, "attention_fp8")), "attention_out")


def _heads(code: _Code, keeps: frozenset[str], kept: Made, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    whole = _keep(keeps, kept, "norm1", code.gathered(normed, "attention_in"))
    del normed
    q, k, v = (_keep(keeps, kept, name, code.product(name, whole)) for name in ("wq", "wk", "wv"))
    return q, k, v


def _gate(code: _Code, keeps: frozenset[str], kept: Made, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of w1 and w3, from the norm of the hidden state."""
    whole = _keep(keeps, kept, "norm2", code.gathered(code.norm(x, "norm2"), "feed_forward_in"))
    gate, up = (_keep(keeps, kept, name, code.product(name, whole)) for name in ("w1", "w3"))
    return gate, up


def _product(code: _Code, keeps: frozenset[str], kept: Made, x: Tensor) -> Tensor:
    """Input of w2: written over w3's output, unless that is kept or w2 reads fp8."""
    gate, up = _gate(code, keeps, kept, x)
    if code.fp8:
        return code.read(gate, "product_fp8")
    return _keep(keeps, kept, "product", code.fused(gate, "product")) if "w3" in keeps else up


# ---- backward -------------------------------------------------------------------------------------------------------
def _backward(code: _Code, grad: Tensor, made: Made) -> Made:
    """Gradients of the input ("x") and of every parameter, from that of the output. `made` is emptied on the way."""
    to: Made = {}
    x = made.pop("x")
    if "attention" not in made:
        _again(code, made, x)
    if "w3" not in made:
        if "wo" not in made:
            made["wo"] = _mixed(code, made["attention"])
        made["norm2"] = code.gathered(code.norm(x, "norm2"), "feed_forward_in")
        made["w3"] = code.product("w3", made["norm2"])
    _of_mlp(code, code.read(code.gathered(grad, "grad_feed_forward_out"), "grad_fp8"), made, to)
    _of_attention(code, x, made, to)
    for weight in code.run.params.values():
        if len(weight.shape) == 1:
            to[weight.name] = code.tape.empty(weight.shape, weight.dtype, "grad_weight")
    return to


def _again(code: _Code, made: Made, x: Tensor) -> None:
    """Everything up to the products that the MLP's gate needs."""
    keeps = REPLAYED if code.mixer.qk_norm else REPLAYED - {"wq", "wk"}
    _attention(code, keeps, made, x)
    _gate(code, keeps, made, x)


def _of_mlp(code: _Code, grad: Tensor, made: Made, to: Made) -> None:
    """Ends with the gradient of the second norm's output, `made["grad_norm2"]`."""
    of_gate, of_up = _of_gate(code, grad, made, to)
    normed = made.pop("norm2")
    weights = [code.weight(name).name for name in ("w1", "w3")]
    to[weights[1]] = code.to_weight("w3", of_up, normed)
    first = code.to_input("w3", of_up)
    del of_up
    to[weights[0]] = code.to_weight("w1", of_gate, normed)
    del normed
    second = code.to_input("w1", of_gate)
    del of_gate
    made["grad_norm2"] = code.scattered(first, "grad_feed_forward_in")
    made["grad_norm2_too"] = second


def _of_gate(code: _Code, grad: Tensor, made: Made, to: Made) -> tuple[Tensor, Tensor]:
    """Gradients of w1's and w3's outputs; a product that was not kept is made with them."""
    down = code.weight("w2").name
    if "product" in made:
        to[down] = code.to_weight("w2", grad, made.pop("product"))
        of_product = code.to_input("w2", grad)
        of_gate = code.fused(made.pop("w1"), "grad_w1")
        del made["w3"]
        return of_gate, of_product  # written over it
    of_product = code.to_input("w2", grad)
    product, of_gate, of_up = (_of_gate_in_fp8 if code.fp8 else _of_gate_fused)(code, of_product)
    del of_product, made["w1"], made["w3"]
    to[down] = code.to_weight("w2", grad, product)
    return of_gate, of_up


def _of_gate_fused(code: _Code, of_product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    product, of_gate, of_up = (code.fused(of_product, name) for name in ("product", "grad_w1", "grad_w3"))
    return product, of_gate, of_up


def _of_gate_in_fp8(code: _Code, of_product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest value must be known before a cast: the product and the gate's gradient are written out."""
    _written = code.fused(of_product, "product"), code.fused(of_product, "grad_gate", "fp32")
    product, of_gate, of_up, _other = (code.read(of_product, name) for name in (
        "product_fp8", "grad_w1_fp8", "grad_w3_fp8", "grad_w3_fp8"))
    return product, of_gate, of_up


def _of_attention(code: _Code, x: Tensor, made: Made, to: Made) -> None:
    """From the gradient of the second norm to that of the input."""
    of_hidden = code.norm_backward(made.pop("grad_norm2"))
    del made["grad_norm2_too"]
    whole = code.read(code.gathered(of_hidden, "grad_attention_out"), "grad_fp8")
    of_mixed = code.to_input("wo", whole)
    to[code.weight("wo").name] = code.to_weight("wo", whole, code.read(made["attention"], "attention_fp8"))
    del whole, made["wo"]
    if "norm1" not in made:
        _heads_again(code, x, made)
    of_q, of_k, of_v = code.to_heads(made.pop("q"), made.pop("k"))
    del of_mixed, made["attention"], made["log_sum_exp"], made["wv"]
    normed = made.pop("norm1")
    of_v = code.read(of_v, "grad_fp8")
    to[code.weight("wv").name] = code.to_weight("wv", of_v, normed)
    sums = code.to_input("wv", of_v)
    del of_v
    of_q = code.read(code.turned(of_q, "grad_wq"), "grad_fp8")
    to[code.weight("wq").name] = code.to_weight("wq", of_q, normed)
    more = code.to_input("wq", of_q)
    del of_q
    of_k = code.read(code.turned(of_k, "grad_wk"), "grad_fp8")
    to[code.weight("wk").name] = code.to_weight("wk", of_k, normed)
    del normed
    last = code.to_input("wk", of_k)
    del of_k
    sums = code.scattered(sums, "grad_attention_in")
    to["x"] = code.norm_backward(sums)
    del more, last


def _heads_again(code: _Code, x: Tensor, made: Made) -> None:
    """The first norm and rotated queries and keys, of the products that were kept."""
    made["norm1"] = code.gathered(code.norm(x, "norm1"), "attention_in")
    made["q"] = code.turned(made.pop("wq"), "q")
    made["k"] = code.turned(code.product("wk", made["norm1"]), "k")
