"""Mamba-2 and MoE of transformers 5.23 `models/nemotron_h`.

Two things stand for what cannot be known or run here: routing is perfectly balanced (batched products over equal
groups of rows), and the fused Mamba kernel is a profile of what it saves and needs, an estimate.
"""

from __future__ import annotations

from simcore.models.blocks import Branch, Mamba2, Mlp, Moe
from simcore.operators import aten
from simcore.operators.hf_layers import linear, mlp, relu2
from simcore.recording import Run
from simcore.tape import (
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Kernel,
    Param,
    Tape,
    Tensor,
)

__all__ = ["mamba", "moe"]


def mamba(tape: Tape, run: Run, branch: Branch, x: Tensor) -> Tensor:
    """The input projection, then one fused kernel: convolution, scan, gated norm, output projection."""
    block = branch.block
    assert isinstance(block, Mamba2)
    projected = linear(tape, run, f"{branch.name}.in_proj", x)
    a = aten.neg(tape, aten.exp(tape, aten.cast(tape, run.params[f"{branch.name}.A_log"], "fp32")))
    return _FusedMamba(run, branch.name, block, projected).forward(tape, projected, a)


class _FusedMamba:
    """Saved: the input projection's output, the scan's output before the norm, the inverse RMS of each group."""

    def __init__(self, run: Run, name: str, block: Mamba2, z: Tensor) -> None:
        self.block, self.dtype, self.z_shape = block, z.dtype, z.shape
        self.rows = (z.shape[0], z.shape[1])
        chunks = -(-run.seq // block.chunk)
        self.scan = {
            "dt": (run.batch, block.num_heads, chunks, block.chunk),
            "decay": (run.batch, block.num_heads, chunks, block.chunk),
            "states": (run.batch, chunks, block.num_heads, block.head_dim, block.state),
            "scores": (run.batch, chunks, block.num_groups, block.chunk, block.chunk),
        }
        self.params = [run.params[f"{name}.{part}"]
                       for part in ("conv1d.weight", "conv1d.bias", "dt_bias", "D", "norm.weight", "out_proj.weight")]
        tokens = run.batch * run.seq
        self.project_flops = 2 * tokens * block.inner * block.hidden
        # Scores and their product with x inside a chunk, then the states in and out of it.
        self.scan_flops = 2 * tokens * (block.num_heads * block.head_dim * (block.chunk + 2 * block.state)
                                        + block.num_groups * block.chunk * block.state)
        self.conv_flops = 2 * tokens * block.conv_dim * block.conv_kernel

    def forward(self, tape: Tape, z: Tensor, a: Tensor) -> Tensor:
        """Temporaries of the scan die before the norm."""
        conv_weight, conv_bias, dt_bias, d, norm, out_weight = self.params
        node = tape.node((z, conv_weight, conv_bias, dt_bias, a, d, norm, out_weight), (), self.backward)
        convolved = self._activation(tape, "conv", self.block.conv_dim)
        tape.compute(Kernel.CONV, self.conv_flops, z.nbytes + convolved.nbytes)
        temporary = [tape.empty(shape, "fp32", f"scan.{part}") for part, shape in self.scan.items()]
        scanned = self._activation(tape, "scan", self.block.inner)
        tape.compute(Kernel.MAMBA_SCAN, self.scan_flops, sum(x.nbytes for x in (*temporary, convolved, scanned)))
        temporary.clear()
        del convolved
        normed = self._activation(tape, "gated_norm", self.block.inner)
        tape.compute(Kernel.NORM, normed.numel, 3 * normed.nbytes)
        rstd = tape.empty((self.rows[0] * self.rows[1] * self.block.num_groups,), "fp32", "rstd")
        out = self._activation(tape, "out_proj", self.block.hidden)
        tape.compute(Kernel.GEMM, self.project_flops, normed.nbytes + out_weight.nbytes + out.nbytes)
        tape.save(node, z, conv_weight, conv_bias, scanned, a, d, dt_bias, norm, rstd, out_weight)
        out.node = node
        return out

    def _activation(self, tape: Tape, name: str, width: int) -> Tensor:
        return tape.empty((*self.rows, width), self.dtype, name)

    def backward(self, tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        """Recomputes what forward did not keep; makes every parameter's gradient, wanted or not."""
        conv_weight, conv_bias, dt_bias, d, norm, out_weight = self.params
        inner = self.block.inner
        again = [self._activation(tape, "conv", self.block.conv_dim)]
        tape.compute(Kernel.CONV, self.conv_flops, 2 * again[0].nbytes)
        dz = tape.empty(self.z_shape, self.dtype, "grad_in_proj")
        dnormed = self._activation(tape, "grad_gated_norm", inner)
        tape.compute(Kernel.GEMM, self.project_flops, dnormed.nbytes + out_weight.nbytes)
        normed = self._activation(tape, "gated_norm", inner)
        dout_weight = _grad(tape, out_weight)
        tape.compute(Kernel.GEMM, self.project_flops, normed.nbytes + out_weight.nbytes)
        again.append(self._activation(tape, "grad_scan", inner))
        tape.compute(Kernel.NORM, 2 * normed.numel, 4 * normed.nbytes)
        del normed, dnormed
        again += [tape.empty(shape, "fp32", f"scan.{part}") for part, shape in self.scan.items()]
        again.append(tape.empty(self.scan["states"], "fp32", "scan.grad_states"))
        again.append(self._activation(tape, "grad_conv", self.block.conv_dim))
        again.append(tape.empty(self.scan["dt"], "fp32", "scan.grad_dt"))
        tape.compute(Kernel.MAMBA_SCAN, 5 * self.scan_flops // 2, 2 * sum(x.nbytes for x in again))
        tape.compute(Kernel.CONV, 2 * self.conv_flops, 3 * again[0].nbytes)
        again.clear()
        return [dz, _grad(tape, conv_weight), _grad(tape, conv_bias), _grad(tape, dt_bias),
                tape.empty((self.block.num_heads,), "fp32", "grad_a"), _grad(tape, d), _grad(tape, norm), dout_weight]


def _grad(tape: Tape, param: Param) -> Tensor:
    return tape.empty(param.shape, param.dtype, f"grad_{param.name.removeprefix(tape.scope)}")


def moe(tape: Tape, run: Run, branch: Branch, x: Tensor) -> Tensor:
    """Router, routed experts, and a shared expert on the same input."""
    block = branch.block
    assert isinstance(block, Moe)
    name, shape = branch.name, x.shape
    # The logits stay in a local variable that nobody reads.
    _logits, weights, indices = _route(tape, run, name, block, x.view(run.tokens, block.hidden))
    flat = _view(tape, x, (run.tokens, block.hidden))
    if ("experts", "unit") in run.options:
        y = _inner_unit(tape, run, name, block, flat, indices, weights)
    else:
        y = _experts(tape, run, name, block, flat, indices, weights)
    del flat
    y = y.view(*shape)
    shared = Mlp(block.hidden, block.shared_ffn, gated=block.gated)
    return aten.add(tape, y, mlp(tape, run, f"{name}.shared_experts", shared, x))


def _view(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view with a node of its own: gradients of `x` meet behind it."""
    whole = x.shape

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        return [grad and grad.view(*whole)]

    return Tensor(x.storage, shape, x.dtype, tape.node((x,), (), backward))


def _route(tape: Tape, run: Run, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sigmoid scores, one group of experts, top k, normalised and scaled. All in fp32."""
    tokens, experts = run.tokens, block.num_experts
    weight = run.params[f"{name}.gate.weight"]
    logits = aten.linear(tape, aten.cast(tape, x, "fp32"), aten.cast(tape, weight, "fp32"), "gate")
    scores = aten.sigmoid(tape, logits)
    choice = aten.add_scalar(tape, scores)
    group_scores = aten.sum_last(tape, aten.topk(tape, choice.view(tokens, 1, experts), 2)[0])
    group_indices = aten.topk(tape, group_scores, 1)[1]
    group_mask = aten.select(tape, group_scores, (tokens, 1), "fp32", "group_mask")
    mask = aten.select(tape, aten.select(tape, group_mask, (tokens, experts), "uint8", "mask"), (tokens, experts),
                       "uint8", "mask")
    choice = aten.masked_fill(tape, choice, mask)
    del mask
    indices = aten.topk(tape, choice, block.top_k)[1]
    weights = aten.gather(tape, scores, indices)
    denominator = aten.add_scalar(tape, aten.sum_last(tape, weights, keepdim=True))
    aten.div_(tape, weights, denominator)
    weights = aten.mul_scalar(tape, weights)
    del group_indices
    return logits, weights, indices


def _inner_unit(tape: Tape, run: Run, name: str, block: Moe, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """The experts as a data-parallel unit of their own: it casts floating inputs, its hooks run inside the layer."""
    weights = aten.cast(tape, weights, run.compute)
    tape.mark(INNER_FORWARD_BEGIN)
    y = _experts(tape, run, name, block, *_unit_inputs(tape, x, indices, weights))
    y.node = tape.node((y,), (), _unit_backward_begin)
    tape.mark(INNER_FORWARD_END)
    return y


def _unit_inputs(tape: Tape, x: Tensor, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    node = tape.node((x, weights), (), _unit_backward_end)
    return (Tensor(x.storage, x.shape, x.dtype, node), indices,
            Tensor(weights.storage, weights.shape, weights.dtype, node, 1))


def _unit_backward_begin(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
    tape.mark(INNER_BACKWARD_BEGIN)
    return list(grads)


def _unit_backward_end(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
    tape.mark(INNER_BACKWARD_END)
    return [*grads, None][:2]


def _experts(tape: Tape, run: Run, name: str, block: Moe, hidden: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Rows sorted by expert, two batched products, rows weighted and added back."""
    rows = run.tokens * block.top_k
    order = aten.sort(tape, indices.view(rows))
    token = aten.select(tape, order, (rows,), "int64", "token")
    x = aten.index(tape, hidden, token, "dispatched")
    # DTensor.to_local() makes its nodes here, a plain parameter's transpose next to each product.
    local = ("experts", "unit") in run.options and run.ep > 1
    matrices = [aten.strided(tape, run.params[f"{name}.experts.{part}"]) for part in ("up_proj", "down_proj")] * local
    if run.ep > 1:
        received = run.tokens * run.rows_per_token >> 16 if run.rows_per_token else rows
        x = aten.all_to_all(tape, x, received, run.ep_axis)
        x = _regroup(tape, run, name, x, "experts_in")
    h = _product(tape, run, f"{name}.experts.up_proj", x, matrices, 0)
    h = relu2(tape, h)
    y = _product(tape, run, f"{name}.experts.down_proj", h, matrices, 1)
    if run.ep > 1:
        y = _regroup(tape, run, name, y, "experts_out")
        y = aten.all_to_all(tape, y, rows, run.ep_axis)
    row_weights = _row_weights(tape, weights, order, y.dtype)
    y = aten.mul(tape, y, row_weights, "weighted")
    del row_weights
    return aten.index_add(tape, aten.select(tape, hidden, hidden.shape, hidden.dtype, "zeros"), token, y)


def _regroup(tape: Tape, run: Run, name: str, x: Tensor, label: str) -> Tensor:
    """Rows by rank and expert become rows by expert and rank, or back: a copy, unless there is only one expert."""
    return aten.swap_dims(tape, x, label) if run.params[f"{name}.experts.up_proj"].shape[0] > 1 else x


def _product(tape: Tape, run: Run, name: str, x: Tensor, matrices: list[Tensor], number: int) -> Tensor:
    matrix = matrices[number] if matrices else aten.strided(tape, run.params[name])
    return aten.bmm(tape, x, matrix, name.removeprefix(tape.scope))


def _row_weights(tape: Tape, weights: Tensor, order: Tensor, dtype: str) -> Tensor:
    rows = order.shape[0]
    picked = aten.index(tape, weights.view(rows), order, "row_weights")
    return aten.cast(tape, picked, dtype).view(rows, 1)
