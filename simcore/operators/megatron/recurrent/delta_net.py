"""Megatron-Core's gated delta net: in_proj with its norm, convolution, the rule over chunks, gated norm, out_proj.

megatron-core 0.16.1 `ssm/gated_delta_net.py`; main of 2026-08-22 `ssm/gated_delta_net/common.py` and `gdn.py`. A rank
has its share of the heads and all tokens. Query and key are normalised before the rule and repeated for the value heads
of a group, so that the rule sees as many heads of each; biases there are none.

[Note: what the inputs of the rule keep]
Core 0.16.1 runs torch operators: gate, learning rate and decay are copied out of the projection, which nothing keeps.
On main the convolution keeps its input, a view, and with it all of the projection; the rest is compiled in two parts,
with the norm of query and key between them (`L2NormFunction` of flash-linear-attention, which torch.compile does not
enter): the first copies query and key, the second makes all six inputs in one kernel and keeps what it was given (torch
2.13's min-cut partitioner, on a CPU: parameters and views of the projection). The gated norm is compiled in both, and
keeps the norm's output and the gate.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.errors import NotYet, Problem
from simcore.models.blocks import GatedDeltaNet
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import copied_gradient, identity, reordered
from simcore.operators.megatron.ops.linear import norm_linear, row
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.recurrent.convolutions import channels_first, in_place
from simcore.operators.megatron.recurrent.exchange import to_heads, to_positions
from simcore.operators.shared import aten
from simcore.operators.shared.delta_rule import rule
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["delta_net"]

_AT = "self_attention"


def delta_net(c: Context, block: GatedDeltaNet, x: Tensor) -> Tensor:
    """Output of the gated delta net for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included; the caller adds the residual. Local: after sequence parallelism. Raises NotYet for
    packs.
    """
    if c.run.sequences:
        raise NotYet(Problem("training.lengths", "not yet: gated delta nets of packed sequences"))
    heads = c.param(f"{_AT}.A_log").shape[0]
    own = replace(block, num_key_heads=block.num_key_heads * heads // block.num_value_heads, num_value_heads=heads)
    projected = to_heads(c, norm_linear(c, f"{_AT}.in_proj", x))  # a variable of the module until out_proj has returned
    mixed, gate, beta, alpha = aten.split(c.tape, _batch_first(c, projected), (own.conv_dim, own.values, heads, heads))
    weight = c.param(f"{_AT}.conv1d.weight")
    if c.options.compiles_delta_net:
        mixed = in_place(c, weight, mixed)
        query, key, value, g, beta, gate = _compiled(c, own, mixed, gate, beta, alpha)
    else:
        mixed = channels_first(c, weight, mixed)
        query, key, value, g, beta, gate, _copy = _step_by_step(c, own, mixed, gate, beta, alpha)
    seen = replace(own, num_key_heads=heads)  # the rule gets as many query and key heads
    shaped = [part.view(c.run.batch, c.tokens // c.run.batch, part.shape[1]) for part in (query, key, value, g, beta)]
    out = rule(c.tape, seen, shaped[:3], shaped[3], shaped[4], prepared=True)
    shaped.clear()
    normed = _gated_norm(c, own, out.view(c.tokens * heads, own.value_dim), gate)
    found = _sequence_first(c, normed.view(c.tokens, own.values))
    del normed
    return row(c, f"{_AT}.out_proj", to_positions(c, found))


# ---- inputs of the rule: core 0.16.1 --------------------------------------------------------------------------------
def _step_by_step(c: Context, own: GatedDeltaNet, mixed: Tensor, gate: Tensor, beta: Tensor,
                  alpha: Tensor) -> tuple[Tensor, ...]:
    """Query, key, value, decay, learning rate and gate by one torch operator each; last the copy that decay is made of.

    The forward pass holds that copy to its end.
    """
    query, key, value = aten.split(c.tape, mixed, (own.keys, own.keys, own.values))
    query, key = (_head_norm(c, own, _copied(c, part, "delta.normed_input")) for part in (query, key))
    query, key = _repeated(c, own, query), _repeated(c, own, key)
    value, gate = _copied(c, value, "delta.value"), _copied(c, gate, "delta.gate")
    beta, alpha = _copied(c, beta, "delta.beta_input"), _copied(c, alpha, "delta.alpha")
    g = _decay(c, alpha)
    return query, key, value, g, aten.sigmoid(c.tape, beta), gate, alpha


def _copied(c: Context, x: Tensor, name: str) -> Tensor:
    rows, columns = x.shape
    out = c.new(rows, columns, name)
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), identity)
    return out


def _head_norm(c: Context, own: GatedDeltaNet, x: Tensor) -> Tensor:
    """`l2norm` of each head of `x` [tokens, columns]: keeps its output and an inverse norm a head (fp32)."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_delta.normed")
        c.elementwise(grad, 3, Kernel.NORM)
        return [grad]

    out = c.new(rows, columns, "delta.normed")
    inverse = c.new(rows, columns // own.key_dim, "delta.inverse_norm", "fp32")
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x,), (out, inverse), back)
    return out


def _repeated(c: Context, own: GatedDeltaNet, x: Tensor) -> Tensor:
    """`repeat_interleave` of each head for the value heads of its group; `x` itself if there is one of each."""
    times, (rows, columns) = own.num_value_heads // own.num_key_heads, x.shape
    if times == 1:
        return x

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_delta.repeated")
        c.elementwise(grad, 1 + times, operators=1)
        return [grad]

    out = c.new(rows, columns * times, "delta.repeated")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), back)
    return out


def _decay(c: Context, alpha: Tensor) -> Tensor:
    """`-A_log.exp() * softplus(alpha.float() + dt_bias)` in fp32, operator by operator."""
    a_log, bias = c.param(f"{_AT}.A_log"), c.param(f"{_AT}.dt_bias")
    rate = c.new(1, a_log.shape[0], "delta.exp")
    c.node(rate, (a_log,), (rate,), lambda tape, grads, saved: [c.small_grad(a_log)])
    rate = aten.neg(c.tape, rate)
    wide = aten.cast(c.tape, alpha, "fp32")
    step = c.tape.empty(wide.shape, "fp32", "delta.step_input")
    c.elementwise(step, 2, operators=1)

    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        _summed = tape.empty(bias.shape, "fp32", "grad_delta.bias_sum")
        return [grads[0], c.small_grad(bias)]

    c.node(step, (wide, bias), (), back)
    del wide
    return aten.mul(c.tape, rate, aten.softplus(c.tape, step), "delta.decay")


# ---- inputs of the rule: main of 2026-08-22 -------------------------------------------------------------------------
def _compiled(c: Context, own: GatedDeltaNet, mixed: Tensor, gate: Tensor, beta: Tensor,
              alpha: Tensor) -> list[Tensor]:
    """Query, key, value, decay (fp32), learning rate and gate: [Note: what the inputs of the rule keep]."""
    both, value = _cut(c, own, mixed)
    normed = _head_norm(c, own, both)
    del both
    a_log, bias, rows = c.param(f"{_AT}.A_log"), c.param(f"{_AT}.dt_bias"), mixed.shape[0]
    heads, wide = own.num_value_heads, own.num_value_heads * own.key_dim

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        made = [c.new(rows, columns, f"grad_delta.{name}")
                for name, columns in (("normed_output", 2 * own.keys), ("alpha", heads), ("beta", heads))]
        c.tape.compute(Kernel.ELEMENTWISE, 2 * rows * wide, c.size * 2 * rows * (wide + own.keys), 1)
        c.tape.compute(Kernel.ELEMENTWISE, rows * heads, (4 + 3 * c.size) * rows * heads, 1)
        return [made[0], grads[2], grads[5], made[2], made[1], c.small_grad(a_log), c.small_grad(bias)]

    shapes = (("query", wide, ""), ("key", wide, ""), ("value", own.values, ""), ("decay", heads, "fp32"),
              ("beta", heads, ""), ("gate", own.values, ""))
    node = c.tape.node((normed, value, gate, beta, alpha, a_log, bias), (alpha, beta), back)
    out = [c.new(rows, columns, f"delta.{name}", dtype) for name, columns, dtype in shapes]
    c.tape.compute(Kernel.ELEMENTWISE, sum(x.numel for x in out),
                   normed.nbytes + 2 * value.nbytes + 2 * c.size * rows * heads + sum(x.nbytes for x in out), 1)
    for place, made in enumerate(out):
        made.node, made.output = node, place
    return out


def _cut(c: Context, own: GatedDeltaNet, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of query and key side by side, and a view of value; backward puts both gradients into one tensor."""
    rows, columns = mixed.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_delta.conv")
        c.elementwise(grad, 2, Kernel.COPY, operators=1)
        return [grad]

    both = c.new(rows, 2 * own.keys, "delta.normed_input")
    c.elementwise(both, 2, Kernel.COPY, operators=1)
    node = c.node(both, (mixed,), (), back)
    return both, Tensor(mixed.storage, (rows, own.values), mixed.dtype, node, 1)


# ---- behind the rule ------------------------------------------------------------------------------------------------
def _gated_norm(c: Context, own: GatedDeltaNet, x: Tensor, gate: Tensor) -> Tensor:
    """Norm of each head of `x` [tokens * heads, columns], then, compiled, times SiLU of the gate in fp32."""
    shape, flat = gate.shape, x.shape
    normed = norm(c, f"{_AT}.out_norm", x, "delta.out_normed")

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        to_normed = c.tape.empty(flat, c.dtype, "grad_delta.out_normed")
        to_gate = c.tape.empty(shape, c.dtype, "grad_delta.gate")
        c.elementwise(to_gate, 5, operators=1)
        return [to_normed, to_gate]

    out = c.tape.empty(flat, c.dtype, "delta.gated")
    c.elementwise(out, 3, operators=1)
    c.node(out, (normed, gate), (normed, gate), back)
    return out


def _batch_first(c: Context, x: Tensor) -> Tensor:
    """A view, `transpose(0, 1)`, whose gradient the projection copies into its own order where the batch is above 1.

    Where positions were exchanged for heads, what puts them in order takes any.
    """
    if c.run.batch == 1 or c.run.cp > 1:
        return x
    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x,), (), copied_gradient(c, x, "grad_delta.projected"))
    return out


def _sequence_first(c: Context, x: Tensor) -> Tensor:
    """`transpose(0, 1).contiguous()`: nothing at batch 1, a copy, and one of its gradient, at more."""
    return x if c.run.batch == 1 else reordered(c, x, "delta.gated_copy", "grad_delta.gated_copy")
