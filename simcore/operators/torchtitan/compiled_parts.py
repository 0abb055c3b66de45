"""Layers with experts of torchtitan 0.2.2 under torch.compile (torch 2.13): the parts that it compiles one by one.

`models/llama4/infra/parallelize.py` apply_compile: hooks of the experts break a graph, so that attention, both norms,
router, reorderer and shared expert are compiled each by itself, and the grouped products of the experts; sums, the
exchange of rows and their weighting stay eager. The checkpoint is around all of it and sees no product that Inductor
calls (`aten.mm.out`, not `mm.default`): by operator it keeps attention's output and exchanged rows alone. A compiled
norm allocates what the fused one does.

Each part is one autograd node that keeps its inputs and what its products read; pointwise chains are one kernel.
Measured by `tests/truth/probe_titan_compiled.py`, which runs Inductor's own code, one rank's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Attention, Moe
from simcore.operators.shared import aten
from simcore.operators.shared.compiled_kernels import Code, CompiledBlock
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["attention", "experts", "reorder", "route", "shared_expert"]

Grads = list[Tensor | None]
Made = dict[str, Tensor]
_LINEARS: Final = {name: f"attention.{name}" for name in ("wq", "wk", "wv", "wo")}


def _part(tape: Tape, inputs: Sequence[Tensor | Param], saves: Made, run: Callable[[Made], Tensor],
          backward: Callable[[list[Tensor], Made], Grads]) -> Tensor:
    """Output of a compiled part, one node over `inputs`.

    `run` puts what is kept, beside `saves`, into the mapping that it is given; `backward` makes the gradients of the
    inputs from the output's, which it takes out of a list, and from what was kept.
    """
    kept: Made = {}
    names: list[str] = []

    def back(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        given = [grad for grad in grads if grad is not None]
        grads.clear()
        made = dict(zip(names, saved, strict=True))
        saved.clear()
        return backward(given, made)

    node = tape.node(inputs, (), back)
    out = run(kept)
    kept = {**saves, **kept}
    names += kept
    tape.save(node, *kept.values())
    out.node = node
    return out


# ---- attention ------------------------------------------------------------------------------------------------------
def attention(tape: Tape, run: LayerWorkload, block: Attention, x: Tensor, table: Tensor | None) -> Tensor:
    """Output of attention (`Attention.forward`) for `x` [b, s, hidden], in x's shape. `table`: as in `attention`."""
    code = Code(tape, run, CompiledBlock(block, _LINEARS, "none", by_complex=not block.qk_norm))
    params, needs = [one for name, one in run.params.items() if name.startswith("attention.")], x.node is not None

    def backward(given: list[Tensor], made: Made) -> Grads:
        to: Made = {}
        (_of_normed if block.qk_norm else _of_complex)(code, given, made, to)
        return [to.pop("x") if needs else None, *(to[param.name] if param.name in to else aten.new(
            tape, param.shape, run.compute, "grad_norm_weight") for param in params)]

    saves = {"x": x} if table is None else {"x": x, "table": table}
    return _part(tape, (x, *params), saves, lambda kept: _attention(code, x, kept), backward)


def _attention(code: Code, x: Tensor, kept: Made) -> Tensor:
    if code.block.by_complex:
        q, k, v = _complex_heads(code, x)
    else:
        q, k, v = (code.product(name, x) for name in ("wq", "wk", "wv"))
        kept |= {"wq": q, "wk": k}
        kept |= {f"rstd_{name}": code.tape.empty((one.numel // code.mixer.head_dim,), "fp32", "rstd")
                 for name, one in (("q", q), ("k", k))}
        q, k = code.turned(q, "q"), code.turned(k, "k")
    out, log = code.tape.outputs("attention", lambda: code.attention(q))
    kept |= {"q": q, "k": k, "wv": v, "attention": out, "log_sum_exp": log}
    return code.product("wo", out)


def _complex_heads(code: Code, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries and keys, and values; complex products of fp32 are left to PyTorch."""
    wide: Made = {}
    for name in ("wq", "wk"):
        made = code.product(name, x)
        wide[name] = code.copied(made, "rotary_in", "fp32")
        del made
    for name in ("wq", "wk"):
        wide[name] = code.copied(wide[name], "rotary")
    v = code.product("wv", x)
    k = code.copied(wide["wk"], "k", v.dtype)
    return code.copied(wide["wq"], "q", v.dtype), k, v


def _of_core(code: Code, given: list[Tensor], made: Made) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of rotated queries and keys and of values, from that of the output projection."""
    of_heads = code.to_input("wo", given[0])
    of_q, of_k, of_v = code.to_heads(made.pop("q"), made.pop("k"))
    del of_heads, made["log_sum_exp"], made["wv"]
    return of_q, of_k, of_v


def _of_normed(code: Code, given: list[Tensor], made: Made, to: Made) -> None:
    """Heads with norms, whose weights' gradients are summed from gradients in fp32 at the end."""
    of_q, of_k, of_v = _of_core(code, given, made)
    x = made.pop("x")
    sums = code.to_input("wv", of_v)
    wide_k = code.copied(of_k, "grad_norm", "fp32")
    of_k = code.fused(of_k, "grad_wk")
    more = [code.to_input("wk", of_k)]
    to[code.weight("wv").name] = code.to_weight("wv", of_v, x)
    del of_v
    to[code.weight("wk").name] = code.to_weight("wk", of_k, x)
    del of_k
    to[code.weight("wo").name] = code.to_weight("wo", given.pop(), made.pop("attention"))
    wide_q = code.copied(of_q, "grad_norm", "fp32")
    of_q = code.fused(of_q, "grad_wq")
    more.append(code.to_input("wq", of_q))
    del wide_k, made["wk"]
    to[code.weight("wq").name] = code.to_weight("wq", of_q, x)
    del wide_q
    code.tape.compute(Kernel.ELEMENTWISE, 2 * sums.numel, 4 * sums.nbytes)
    to["x"] = sums


def _of_complex(code: Code, given: list[Tensor], made: Made, to: Made) -> None:
    """Complex products of fp32 are left to PyTorch, in backward too."""
    of_q, of_k, of_v = _of_core(code, given, made)
    x, dtype = made.pop("x"), given[0].dtype
    of_k = code.copied(of_k, "grad_rotary_in", "fp32")
    of_k = code.copied(of_k, "grad_rotary")
    of_q = code.copied(of_q, "grad_rotary_in", "fp32")
    of_q = code.copied(of_q, "grad_rotary")
    of_k = code.copied(of_k, "grad_wk", dtype)
    sums = code.to_input("wk", of_k)
    to[code.weight("wo").name] = code.to_weight("wo", given.pop(), made.pop("attention"))
    more = [code.to_input("wv", of_v)]
    to[code.weight("wv").name] = code.to_weight("wv", of_v, x)
    del of_v
    to[code.weight("wk").name] = code.to_weight("wk", of_k, x)
    del of_k
    of_q = code.copied(of_q, "grad_wq", dtype)
    more.append(code.to_input("wq", of_q))
    to[code.weight("wq").name] = code.to_weight("wq", of_q, x)
    code.tape.compute(Kernel.ELEMENTWISE, 2 * sums.numel, 4 * sums.nbytes)
    to["x"] = sums


# ---- router ---------------------------------------------------------------------------------------------------------
def route(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(fp32 weights [t, k], int64 numbers [t, k] of the chosen experts, tokens of each expert [e]) of `x` [t, hidden].

    `TokenChoiceTopKRouter.forward`. Scores are made again in backward, from the product and sums of the softmax.
    """
    gate, dtype, needs = run.params["moe.router.gate.weight"], x.dtype, x.node is not None
    scores, chosen = (x.shape[0], block.num_experts), (x.shape[0], block.top_k)
    shape, flops, found = x.shape, 2 * x.numel * block.num_experts, list[Tensor]()

    def forward(kept: Made) -> Tensor:
        kept["mm"] = aten.new(tape, scores, dtype, "router_gate", x.nbytes + gate.nbytes, Kernel.GEMM, flops)
        if block.router != "sigmoid":
            kept |= {name: tape.empty((scores[0], 1), "fp32", name) for name in ("amax", "sum")}
        _made = aten.new(tape, scores, "fp32", "scores", kept["mm"].nbytes)
        _choice = aten.new(tape, scores, "fp32", "choice", _made.nbytes)
        _values = aten.new(tape, chosen, "fp32", "topk", _choice.nbytes)
        kept["indices"] = tape.empty(chosen, "int64", "topk_indices")
        del _choice, _values
        weights = aten.new(tape, chosen, "fp32", "weights", _made.nbytes, Kernel.PERMUTE)
        if block.normalised:
            kept["gather"] = weights
            weights = aten.new(tape, chosen, "fp32", "weights", weights.nbytes)
        found.extend((kept["indices"], tape.empty((block.num_experts,), "int64", "tokens_per_expert")))
        return weights

    def backward(given: list[Tensor], made: Made) -> Grads:
        wide = aten.new(tape, scores, "fp32", "grad_scores", 2 * given.pop().nbytes)
        of_gate = aten.new(tape, scores, dtype, "grad_gate", wide.nbytes + made["mm"].nbytes)
        del wide
        made.clear()
        weight = aten.new(tape, gate.shape, dtype, "grad_weight", of_gate.nbytes, Kernel.GEMM, flops)
        return [aten.new(tape, shape, dtype, "grad_router", of_gate.nbytes, Kernel.GEMM, flops) if needs else None,
                weight]

    weights = _part(tape, (x, gate), {"x": x}, forward, backward)
    indices, counts = found
    return weights, indices.detach(), counts


def reorder(tape: Tape, block: Moe, weights: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(sorted weights, order, both [rows], tokens of each expert [e]), `TokenReorderer.forward`."""
    rows, shape, found = (weights.numel,), weights.shape, list[Tensor]()

    def forward(kept: Made) -> Tensor:
        found.append(tape.empty((block.num_experts,), "int64", "tokens_per_expert"))
        kept["order"] = aten.sort(tape, Tensor(indices.storage, rows, indices.dtype))
        found.append(kept["order"])
        return aten.new(tape, rows, "fp32", "sorted_weights", kept["order"].nbytes, Kernel.PERMUTE)

    def backward(given: list[Tensor], made: Made) -> Grads:
        return [aten.new(tape, shape, "fp32", "grad_sorted", made["order"].nbytes, Kernel.PERMUTE)]

    picked = _part(tape, (weights,), {}, forward, backward)
    counts, order = found
    return picked, order.detach(), counts


# ---- experts --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Products:
    """Products of an MLP, of all tokens or, of `experts` > 0, grouped by expert. `weights`: w1, w2 and w3."""

    tape: Tape
    weights: Sequence[Param]
    experts: int = 0

    def of(self, x: Tensor, number: int, name: str, *, turned: bool = False) -> Tensor:
        """`x @ weight.T`, or `x @ weight` if `turned`."""
        weight, length = self.weights[number], x.shape[-1]
        width, rows = weight.shape[-1 if turned else -2], x.numel // length
        shapes = aten.shapes_of_group(rows, length, width, self.experts)[0] if self.experts else 0
        return aten.new(self.tape, (rows, width), x.dtype, name, x.nbytes + weight.nbytes, self.kernel,
                        2 * x.numel * width, shapes)

    def to_weight(self, number: int, grad: Tensor, x: Tensor) -> Tensor:
        """`grad.T @ x`."""
        weight = self.weights[number]
        shape = shape_of(weight.shape[-2], weight.shape[-1], self.experts or 1, sums_rows=True)
        return aten.new(self.tape, weight.shape, x.dtype, "grad_weight", grad.nbytes + x.nbytes, self.kernel,
                        2 * grad.numel * x.shape[-1], shape)

    @property
    def kernel(self) -> Kernel:
        return Kernel.GROUPED_GEMM if self.experts else Kernel.GEMM


def shared_expert(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`FeedForward.forward` of all tokens `x` [t, hidden]."""
    weights = [run.params[f"moe.shared_experts.{name}.weight"] for name in ("w1", "w2", "w3")]
    return _gated(_Products(tape, weights), x, {})


def experts(tape: Tape, run: LayerWorkload, count: int, x: Tensor) -> Tensor:
    """`_run_experts_grouped_mm` of `count` experts for rows `x` [r, hidden]."""
    offsets = tape.empty((count,), "int32", "offsets")
    weights = [run.params[f"moe.experts.{name}"] for name in ("w1", "w2", "w3")]
    return _gated(_Products(tape, weights, count), x, {"offsets": offsets})


def _gated(products: _Products, x: Tensor, saves: Made) -> Tensor:
    """`w2(silu(w1(x)) * w3(x))`, which keeps both outputs and their product."""
    tape, needs = products.tape, x.node is not None

    def forward(kept: Made) -> Tensor:
        kept |= {name: products.of(x, number, name) for number, name in ((0, "w1"), (2, "w3"))}
        kept["product"] = aten.new(tape, kept["w1"].shape, x.dtype, "product", 2 * kept["w1"].nbytes)
        return products.of(kept["product"], 1, "w2")

    def backward(given: list[Tensor], made: Made) -> Grads:
        to_w2 = products.to_weight(1, given[0], made.pop("product"))
        of_product = products.of(given.pop(), 1, "grad_w2", turned=True)
        shape, dtype, moved = of_product.shape, of_product.dtype, of_product.nbytes
        of_gate, of_up = aten.new(tape, shape, dtype, "grad_w1", 3 * moved), made.pop("w3")
        tape.compute(Kernel.ELEMENTWISE, 0, moved)  # written over w3's output
        del of_product, made["w1"]
        rows = made.pop("x")
        to_x = products.of(of_gate, 0, "grad_w1_in", turned=True)
        to_w1 = products.to_weight(0, of_gate, rows)
        del of_gate
        more = products.of(of_up, 2, "grad_w3_in", turned=True)
        tape.compute(Kernel.ELEMENTWISE, to_x.numel, 3 * to_x.nbytes)
        del more
        return [to_x if needs else None, to_w1, to_w2, products.to_weight(2, of_up, rows)]

    return _part(tape, (x, *products.weights), {"x": x, **saves}, forward, backward)
