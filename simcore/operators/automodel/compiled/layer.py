"""A dense layer of NeMo Automodel under torch.compile: what AOTAutograd keeps and what Inductor allocates.

The layer is one autograd node between FSDP2's hooks, which break the graph. Without checkpointing it keeps what
products and attention read, and the hidden state between its halves. With it, `self_attn` and `mlp` are regions of the
graph that backward makes again (`components/distributed/parallelizer.py`, NO_REENTRANT): the layer keeps its input and
the outputs of both norms, no more; the MLP is made again first, attention when its turn comes.

Llama's and Qwen2's norms are custom operators that no kernel is fused with (`components/models/common/utils.py`,
float32_rms_norm), so that the hidden state between the halves is written out; Qwen3's and those of transformers' layers
a kernel adds and normalises: kept is the projection's output, which is as large. Rotation, activation and sums are one
kernel each, which writes over an input that is not needed again. See `operators/shared/compiled_block.py` for compiled
layers with other plans.

Assumed: Inductor's CUDA backend cuts kernels as its CPU one does, which was measured, and runs them in the order of
the graph. It takes the best of four orders by its own reckoning (torch 2.13 `_inductor/memory.py`,
reorder_for_peak_memory): of 80 drawn layers 60 have the peak of this order, the others between two thirds of it and two
thirds more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Attention, LayerKind
from simcore.operators.automodel.compiled.linears import Later, Linears, Made
from simcore.operators.shared.aten import new
from simcore.operators.shared.rms_norm import wide_norm
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["compiled_layer"]

Grads = list[Tensor | None]
_OF_MLP: Final = ("gate_proj", "up_proj", "down_proj")


def compiled_layer(tape: Tape, run: LayerWorkload, kind: LayerKind, x: Tensor, *tables: Tensor,
                   fuses_norms: bool) -> Tensor:
    """Output of a compiled layer of `kind` for `x` [batch, sequence, hidden], in x's shape: one autograd node.

    `tables`: rotary tables that are given to it and kept. `fuses_norms`: norms are no custom operators.
    """
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    code = _Code(tape, run, kind, mixer, Linears(tape, run, {}), run.checkpoint == "full", fuses_norms)
    params, needs = list(run.params.values()), x.node is not None

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        grads.clear()
        assert grad is not None
        made = dict(zip(("x", *table_names, *names), saved, strict=True))
        saved.clear()
        _tables = [made.pop(name) for name in table_names]
        of_x = _backward(code, grad, made)
        to = [code.linears.to.pop(param.name, None) for param in params]
        return [of_x if needs else None, *to]

    kept: Made = {}
    table_names = tuple(f"table{number}" for number in range(len(tables)))
    node = tape.node((x, *params), (x, *tables), backward)
    out = _forward(code, kept, x, keeps=node is not None)
    names = tuple(kept)
    tape.save(node, *kept.values())
    out.node = node
    return out


@dataclass(frozen=True, slots=True)
class _Code:
    """Kernels of a layer beside its linears. `again`: attention and MLP are made again in backward."""

    tape: Tape
    run: LayerWorkload
    kind: LayerKind
    mixer: Attention
    linears: Linears
    again: bool
    fuses_norms: bool

    def path(self, name: str) -> str:
        """Name in the layer of a linear: `q_proj` is `self_attn.q_proj`."""
        return f"{self.kind.branches[int(name in _OF_MLP)].name}.{name}"

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Output of a norm: of one kernel that reads other operators' inputs too, or of Automodel's own operator."""
        if not self.fuses_norms:
            weight = self.run.params[f"{self.kind.branches[int(name != 'norm1')].norm}.weight"]
            return wide_norm(self.tape, x, weight, name)
        return new(self.tape, x.shape, x.dtype, name, 2 * x.nbytes, Kernel.NORM, 4 * x.numel)

    def fused(self, out: Tensor, *read: Tensor) -> None:
        """A kernel that writes over `out`."""
        self.tape.compute(Kernel.ELEMENTWISE, out.numel, 2 * out.nbytes + sum(one.nbytes for one in read))

    def reads(self, *names: str) -> bool:
        """True if backward of one of these linears reads its input."""
        return self.linears.reads(*map(self.path, names))

    @property
    def waits(self) -> bool:
        """True if gradients of weights of norms and attention are made at the end."""
        return (self.again or self.fuses_norms) and self.trains(1)

    def trains(self, branch: int) -> bool:
        return self.run.params[f"{self.kind.branches[branch].norm}.weight"].trainable

    def norm_grads(self, *branches: int) -> None:
        """Gradients of weights of norms."""
        for branch in branches:
            weight = self.run.params[f"{self.kind.branches[branch].norm}.weight"]
            if weight.trainable:
                self.linears.to[weight.name] = new(self.tape, weight.shape, weight.dtype, "grad_norm_weight")


# ---- forward --------------------------------------------------------------------------------------------------------
def _forward(code: _Code, kept: Made, x: Tensor, *, keeps: bool) -> Tensor:
    """The output; `kept` gets what backward needs, nothing if `keeps` is False."""
    lows: Made = {}
    all_of_it = keeps and not code.again
    held = [code.norm(x, "norm1")]
    if keeps and (code.again or code.reads("q_proj", "k_proj", "v_proj")):
        kept["norm1"] = held[0]
    made = _attention(code, held, lows, keeps=all_of_it)
    if all_of_it:
        kept |= made | lows
    lows.clear()
    heads = [made.pop("attention")]
    made.clear()
    rest: list[Tensor] = []
    hidden = _mixed(code, heads, lows, x, rest, keeps=all_of_it)
    held.append(code.norm(hidden, "norm2"))
    if all_of_it:
        kept |= {"hidden": hidden, **lows}
    if keeps and (code.again or code.reads("gate_proj", "up_proj")):
        kept["norm2"] = held[0]
    lows.clear()
    down = _mlp(code, held, lows, kept if all_of_it else None)
    if code.run.tp > 1 and code.fuses_norms:  # as in `_mixed`
        return new(code.tape, x.shape, x.dtype, "residual", hidden.nbytes + down[0].nbytes)
    out = down.pop(0) if all_of_it else hidden
    code.fused(out, hidden, *down, *rest)
    return out


def _attention(code: _Code, held: list[Tensor], lows: Made, *, keeps: bool) -> Made:
    """Rotated queries and keys, values, attention's output and its statistics, by name.

    Of norms over heads, heads before them too, if backward follows (`keeps`). `held`: the input, which is dropped when
    it was read.
    """
    heads = {name: code.linears.column(code.path(f"{name}_proj"), held[0], lows) for name in "qkv"}
    held.clear()
    made: Made = {}
    moved = sum(one.nbytes for parts in heads.values() for one in parts)
    for name in "qk":
        first = heads[name][0]
        made[f"turned_{name}"] = new(code.tape, first.shape, first.dtype, f"rotary_{name}", moved * (name == "q"))
        if code.mixer.qk_norm and keeps:
            made[name] = first  # the sum with an adapter's part lies over it
        del first
    made["v"] = heads["v"][0]
    first = made["turned_q"]
    del moved
    heads.clear()
    shapes, flops = _heads_of(code, first), 2 * code.run.pairs * first.shape[-1]
    out = new(code.tape, first.shape, first.dtype, "attention", first.nbytes + 2 * made["v"].nbytes, Kernel.ATTENTION,
              flops, shape_of_heads(*shapes))
    made["attention"] = out
    rows = (*first.shape[:2], first.shape[2] // code.mixer.head_dim)
    made["log_sum_exp"] = code.tape.empty(rows, "fp32", "log_sum_exp")
    return made


def _heads_of(code: _Code, q: Tensor) -> tuple[int, int, int]:
    """(elements of a key, of a value, number of queries of all heads)."""
    return code.mixer.head_dim, code.mixer.head_dim, q.numel // code.mixer.head_dim


def _mixed(code: _Code, heads: list[Tensor], lows: Made, x: Tensor, rest: list[Tensor], *, keeps: bool) -> Tensor:
    """The hidden state between the halves, over the output projection of attention, or that projection.

    `heads`: attention's output, which is dropped when it was read. What was summed over ranks in its place is not
    written over; a norm that is fused adds it, and so does what comes last. `rest`: gets what is added there again: an
    adapter's part, or the sum over ranks beside a state that is kept (`keeps`), of a projection without one.
    """
    parts = code.linears.row(code.path("o_proj"), heads[0], lows)
    heads.clear()
    if code.run.tp == 1:
        hidden = parts.pop(0)
        code.fused(hidden, x, *parts)
        rest += parts if code.fuses_norms and code.again else []
        return hidden
    if code.fuses_norms:
        return parts[0]
    rest += parts if keeps and code.linears.adapters(code.path("o_proj")) is None else []
    return new(code.tape, x.shape, x.dtype, "hidden", x.nbytes + parts[0].nbytes)


def _mlp(code: _Code, held: list[Tensor], lows: Made, kept: Made | None) -> list[Tensor]:
    """Output of the MLP, with an adapter's part; `kept` gets gate, up and their product, which else lies over gate.

    `held`: the input, which is dropped when it was read.
    """
    gate = code.linears.column(code.path("gate_proj"), held[0], lows)
    up = code.linears.column(code.path("up_proj"), held[0], lows)
    held.clear()
    if kept is None:
        lows.clear()
        product = gate[0]
        code.fused(product, *gate[1:], *up)
    else:
        product = new(code.tape, gate[0].shape, gate[0].dtype, "swiglu", sum(one.nbytes for one in (*gate, *up)))
        kept |= {"gate": gate[0], "up": up[0], **lows}
        if code.reads("down_proj"):
            kept["product"] = product
        lows.clear()
    gate.clear()
    up.clear()
    down = code.linears.row(code.path("down_proj"), product, lows)
    if kept is not None:
        kept |= lows
    return down


# ---- backward -------------------------------------------------------------------------------------------------------
def _backward(code: _Code, grad: Tensor, made: Made) -> Tensor:
    """The gradient of the input, over that of the hidden state; those of parameters go to `code.linears.to`."""
    x = made.pop("x")
    sums = _of_mlp(code, grad, made)
    if code.again:
        lows: Made = {}
        made |= _attention(code, [made["norm1"]], lows, keeps=True) | lows
        lows.clear()
        made["hidden"], *rest = code.linears.row(code.path("o_proj"), made["attention"], made)
        of_hidden = _of_norm_again(code, sums, made, x, rest)
        rest.clear()
    else:
        of_hidden = _of_norm(code, grad, sums, made)
    if not code.waits:
        sums.clear()
    del grad
    later: list[Later] = []
    more = _of_attention(code, of_hidden, made, later)
    code.norm_grads(*((0, 1) if code.waits else (0,)))
    sums.clear()
    made.pop("hidden", None)
    while later:
        code.linears.make(*later.pop(0))
    code.tape.compute(Kernel.NORM, of_hidden.numel, 2 * of_hidden.nbytes + sum(one.nbytes for one in (x, *more)))
    return of_hidden


def _of_norm(code: _Code, grad: Tensor, sums: list[Tensor], made: Made) -> Tensor:
    """Gradient of the hidden state between the halves; in the place of that state if no weight of the norm is trained.

    Then the state's memory is given back and taken again, as a tape has no other way to say so.
    """
    held = [made.pop("hidden")]
    shape, dtype, moved = held[0].shape, held[0].dtype, sum(one.nbytes for one in (grad, *held, *sums))
    if code.waits:
        made["hidden"] = held[0]
    elif not code.trains(1):
        held.clear()
    out = new(code.tape, shape, dtype, "grad_norm", moved, Kernel.NORM)
    code.norm_grads(*() if code.waits else (1,))
    return out


def _of_norm_again(code: _Code, sums: list[Tensor], made: Made, x: Tensor, rest: list[Tensor]) -> Tensor:
    """`_of_norm` of a projection that was made again; what a trained norm's weight reads stays until the end."""
    mixed, moved = made["hidden"], sum(one.nbytes for one in (x, *sums, *rest))
    if code.trains(1) or code.run.tp > 1:
        out = new(code.tape, x.shape, x.dtype, "grad_norm", mixed.nbytes + moved, Kernel.NORM)
    else:
        out = mixed
        code.tape.compute(Kernel.NORM, out.numel, 2 * out.nbytes + moved)
    if not code.trains(1):
        del made["hidden"]
    return out


def _of_mlp(code: _Code, grad: Tensor, made: Made) -> list[Tensor]:
    """Gradients of the second norm's output, which are added where they are read."""
    linears, down = code.linears, code.path("down_proj")
    held = [made.pop("norm2")] if "norm2" in made else []
    lows = {name: made.pop(name) for name in [*made] if name.partition(".")[0] == code.kind.branches[1].name}
    if code.again:
        halves = [linears.column(code.path(name), held[0], lows) for name in ("gate_proj", "up_proj")]
        through = linears.through_row(down, grad, lows)
        if code.reads("down_proj"):
            product, of_up, of_gate = (new(code.tape, through[0].shape, grad.dtype, name, moved * through[0].nbytes)
                                       for name, moved in (("swiglu", 3), ("grad_up", 0), ("grad_gate", 0)))
            halves.clear()
            through.clear()
            linears.low_again(down, product, lows)
            linears.back_row(down, grad, product, lows)
            del product
        else:  # nothing is made that no weight reads; one gradient lies over that of the product
            of_up, of_gate = new(code.tape, through[0].shape, grad.dtype, "grad_up", 3 * through[0].nbytes), through[0]
            halves.clear()
            through.clear()
    else:
        of_gate, of_up = _of_kept_mlp(code, grad, made, lows)
    sums = linears.back_column(code.path("up_proj"), of_up, held, lows)
    del of_up
    return [*sums, *linears.back_column(code.path("gate_proj"), of_gate, held, lows, is_last=True)]


def _of_kept_mlp(code: _Code, grad: Tensor, made: Made, lows: Made) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up, one over up."""
    linears, down, product = code.linears, code.path("down_proj"), made.pop("product", None)
    if linears.adapters(down) is None:
        linears.back_row(down, grad, product, lows)
        product = None
        through = linears.through_row(down, grad, lows)
    else:
        through = linears.through_row(down, grad, lows)
        linears.back_row(down, grad, product, lows)
        product = None
    gate, up = made.pop("gate"), made.pop("up")
    of_up = new(code.tape, up.shape, up.dtype, "grad_up", 3 * up.nbytes)
    code.fused(up, gate, *through)
    return up, of_up


def _of_attention(code: _Code, of_hidden: Tensor, made: Made, later: list[Later]) -> list[Tensor]:
    """Gradients of the first norm's output, which are added where they are read.

    Where they wait, gradients of weights are for `later`, and their operands stay.
    """
    linears, output = code.linears, code.path("o_proj")
    heads, held = made.pop("attention"), [made.pop("norm1")] if "norm1" in made else []
    waits, adapted = code.waits, linears.adapters(output) is not None
    if waits:
        later.append((output, of_hidden, heads))
    elif not adapted:
        linears.back_row(output, of_hidden, heads, made)
    of_heads = linears.through_row(output, of_hidden, made)
    if adapted:
        linears.back_row(output, of_hidden, heads, made)
        code.fused(of_heads[0], of_heads.pop())
    grads = _of_core(code, made)
    del heads, made["log_sum_exp"]
    # one tuple holds all three; and what comes of norms over heads lies where heads were
    stale = {"q": [*grads.values()] * waits}
    if waits and code.mixer.qk_norm:
        stale = {"k": [made["turned_k"], made["v"]], "q": [*stale["q"], made["turned_q"], *of_heads]}
    for name in ("turned_q", "turned_k", "v"):
        del made[name]
    of_heads.clear()
    sums: list[Tensor] = []
    for name in "vkq":
        stale.pop(name, None)
        grad = grads.pop(name) if name == "v" else _turned_back(code, name, grads, made, waits=waits)
        sums += linears.back_column(code.path(f"{name}_proj"), grad, held, made, is_last=name == "q",
                                    later=later if waits else None)
        del grad
    return sums


def _of_core(code: _Code, made: Made) -> Made:
    """Gradients of rotated queries and keys and of values."""
    q, k, v = (made[name] for name in ("turned_q", "turned_k", "v"))
    grads = {name: new(code.tape, one.shape, one.dtype, "grad_attention")
             for name, one in zip("qkv", (q, k, v), strict=True)}
    code.tape.compute(Kernel.ATTENTION, 5 * code.run.pairs * q.shape[-1], 3 * (q.nbytes + 2 * k.nbytes),
                      shape_of_heads(*_heads_of(code, q), backward=True))
    return grads


def _turned_back(code: _Code, name: str, grads: Made, made: Made, *, waits: bool) -> Tensor:
    """Gradient of a projection's output, from that of its rotated heads, through the norm over heads if it has one.

    `waits`: the gradient of that norm's weight is made at the end, of tensors that stay in `made`.
    """
    grad = grads.pop(name)
    out = new(code.tape, grad.shape, grad.dtype, "grad_rotary", grad.nbytes)
    if code.mixer.qk_norm:
        weight = code.run.params[f"{code.kind.branches[0].name}.{name}_norm.weight"]
        code.tape.compute(Kernel.NORM, out.numel, 2 * out.nbytes + made[name].nbytes)
        if weight.trainable:
            code.linears.to[weight.name] = new(code.tape, weight.shape, weight.dtype, "grad_norm_weight")
        if waits:
            made[f"grad_{name}"] = new(code.tape, grad.shape, grad.dtype, "grad_norm")
        else:
            del made[name]
    return out
