"""Norms, linear layers with adapters, attention and MLP as NeMo Automodel runs them on a GPU.

Sources: nemo-automodel 0.7.0 (`components/models/nemotron_v3/layers.py`, `components/models/common/utils.py`,
`components/_peft/{lora,lora_mlp}.py`, `components/moe/layers.py`).

Locals live as long as upstream's: a name that upstream still holds is held here.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Attention
from simcore.operators.automodel.adapters.lora import linear_lora
from simcore.operators.automodel.adapters.split import adapted_column, adapted_row, apart, is_turned
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.te_fp8 import te_linear
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.operators.shared.dtensor import same_everywhere, sum_everywhere
from simcore.operators.shared.float8_linear import float8_linear
from simcore.operators.shared.ring_attention import ring_attention
from simcore.operators.shared.rms_norm import wide_norm
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["attention", "by_heads", "column", "core_attention", "linear", "mlp", "norm", "row", "te_attention"]

Adapted = Callable[[Tape, LayerWorkload, Tensor, tuple[Param, Param], Tensor, str], Tensor]


def norm(env: Env, x: Tensor, path: str, *, by_backend: bool = True) -> Tensor:
    """RMSNorm of `x` in the shape and type of `x`, which keeps x and the weight.

    `path`: name of the norm's module. `by_backend`: it is one of `backend.rms_norm`; 0.7.0's `torch_fp32` computes in
    fp32 beside its input, `wide_norm`. The other kernels save the reciprocal root of each row too, and so do
    snapshots before 0.7.0, where torch.compile saw into the norm.
    """
    tape, weight = env.tape, env.param(f"{path}.weight")
    shape, dtype, w_shape, w_dtype, num_bytes = x.shape, x.dtype, weight.shape, weight.dtype, x.nbytes
    x_needs, w_needs = needs_grad(x), weight.trainable

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_x = new(tape, shape, dtype, "grad_norm", 2 * num_bytes, Kernel.NORM) if x_needs else None
        to_weight = new(tape, w_shape, w_dtype, "grad_norm_weight", 2 * num_bytes, Kernel.NORM) if w_needs else None
        return [to_x, to_weight]

    node = tape.node((x, weight), (x, weight), backward)
    if by_backend and env.options.wide_norms:
        out = wide_norm(tape, x, weight)
    else:
        out = new(tape, shape, dtype, "norm", num_bytes, Kernel.NORM, 4 * x.numel)
    if env.options.keeps_norm_rstd:
        rstd = tape.empty(shape[:-1], "fp32", "norm_rstd")
        tape.save(node, rstd)
    out.node = node
    return out


# ---- linear layers ----------------------------------------------------------------------------------------------
def linear(env: Env, x: Tensor, path: str, adapted: Adapted | None = None) -> Tensor:
    """Output [..., n] of the linear layer at `path` for `x` [..., k].

    Its bias and its LoRA adapter are included, if it has them (`_peft/lora.py`, `LinearLoRA.forward`); none has an
    adapter in 8 bits. `adapted`: runs the adapter of a layer that tp splits.
    """
    tape, name = env.tape, path.rpartition(".")[2]
    pair = env.adapters(path)
    weight, bias = env.param(f"{path}.weight"), env.run.params.get(f"{path}.bias")
    if weight.dtype == "fp8":
        return float8_linear(tape, x, weight, bias, name)
    if env.fp8 and env.options.fp8_linears:
        return te_linear(env, x, weight, bias, name)
    base = aten.linear(tape, x, weight, name, bias=bias)
    if pair is None:
        return base
    if adapted is not None:
        return adapted(tape, env.run, x, pair, base, name)
    if env.options.linear == "te":  # TE adapters are modules of their own and keep x A
        place = env.options.lora_dropout
        x = aten.dropout(tape, x) if place == "pre" else x
        part = aten.linear(tape, aten.mul_scalar(tape, aten.linear(tape, x, pair[0], "lora_a")), pair[1], "lora_b")
        return aten.add(tape, base, aten.dropout(tape, part) if place == "post" else part, name)
    return linear_lora(tape, env.run, f"{path}.", x, base, name)


def column(env: Env, x: Tensor, path: str, dtype: str = "") -> Tensor:
    """`linear` whose output features are split over tp, for `x` equal on all ranks (`ColwiseParallel`).

    Backward sums the gradient of x over tp: each such layer by an all-reduce of its own, as DTensor makes it of a
    plain tensor that several layers are given. The same as `linear` if tp is 1. `dtype`: the type in which autocast
    multiplies, if another than x's, in which gradients are summed.
    """
    if env.run.tp == 1:
        return linear(env, aten.cast(env.tape, x, dtype or x.dtype), path)
    x = same_everywhere(env.tape, x, f"{path.rpartition('.')[2]}_input")
    x = aten.cast(env.tape, x, dtype or x.dtype)
    return linear(env, x, path, adapted_column)


def row(env: Env, x: Tensor, path: str) -> Tensor:
    """`linear` whose input features are split over tp; the outputs are summed (`RowwiseParallel`)."""
    if env.run.tp == 1:
        return linear(env, x, path)
    out = _adapted_row(env, x, path)
    return sum_everywhere(env.tape, out, f"{path.rpartition('.')[2]}_sum")


def _adapted_row(env: Env, x: Tensor, path: str) -> Tensor:
    pair, name = env.adapters(path), path.rpartition(".")[2]
    if pair is None or not is_turned(env.run, x, pair[0], env.options.turns_adapters_from):
        return linear(env, x, path, adapted_row)
    own, other = apart(env.tape, env.run, x, name)
    base = aten.linear(env.tape, own, env.param(f"{path}.weight"), name, bias=env.run.params.get(f"{path}.bias"))
    del own
    return adapted_row(env.tape, env.run, other, pair, base, name)


# ---- MLP --------------------------------------------------------------------------------------------------------
def mlp(env: Env, x: Tensor, path: str, *, gated: bool, splits: bool = False) -> Tensor:
    """Output, in the shape of `x`, of the MLP at `path`: SwiGLU if `gated`, else relu^2.

    `splits`: its width is split over tp.

    Option `fuses_lora_mlp` makes an MLP with adapters one autograd node. 0.7.0 installs it only on weights that are
    materialised when the adapters are made (`_peft/lora_mlp.py`, `_fusible`), and FSDP2 runs build the model on the
    meta device.
    """
    projections = [f"{path}.{name}_proj" for name in (("gate", "up", "down") if gated else ("up", "down"))]
    adapted = all(env.adapters(p) and f"{p}.lora_magnitude" not in env.run.params for p in projections)
    if adapted and not env.options.lora_dropout and env.options.fuses_lora_mlp and env.options.linear == "torch":
        return _fused_lora_mlp(env, x, projections)
    if not gated:
        return linear(env, aten.square(env.tape, aten.relu(env.tape, linear(env, x, f"{path}.up_proj"))),
                      f"{path}.down_proj")
    into, out = (column, row) if splits else (linear, linear)
    product = aten.mul(env.tape, aten.silu(env.tape, into(env, x, f"{path}.gate_proj")),
                       into(env, x, f"{path}.up_proj"), "swiglu")
    return out(env, product, f"{path}.down_proj")


def _fused_lora_mlp(env: Env, x: Tensor, projections: list[str]) -> Tensor:
    """`LoRAReLU2MLPFunction` and `LoRASwiGLUMLPFunction`: keep x and the outputs of the inner projections only."""
    tape, rows, dtype = env.tape, x.numel // x.shape[-1], x.dtype
    weights: list[Param] = []
    for path in projections:
        pair = env.adapters(path)
        assert pair is not None
        weights += [env.param(f"{path}.weight"), *pair]
    inner, gated = len(projections) - 1, len(projections) == 3
    ffn, rank, x_shape, x_bytes, x_needs = weights[0].shape[0], weights[1].shape[0], x.shape, x.nbytes, needs_grad(x)
    flops = 2 * rows * weights[0].numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        acts = [] if gated else [new(tape, (rows, ffn), dtype, "mlp_act", rows * ffn) for _ in range(2)]
        down = _low_rank_grads(tape, rows, rank, weights[-2:], dtype)
        d_act = new(tape, (rows, ffn), dtype, "grad_mlp_act", x_bytes, Kernel.GEMM, flops)
        d_act = new(tape, (rows, ffn), dtype, "grad_mlp_act", d_act.nbytes)  # addmm of that product
        tape.compute(Kernel.ELEMENTWISE, d_act.numel, 4 * d_act.nbytes)
        pairs = [_low_rank_grads(tape, rows, rank, weights[3 * i + 1 : 3 * i + 3], dtype) for i in range(inner)]
        to_x = None
        if x_needs:
            to_x = new(tape, x_shape, dtype, "grad_mlp", d_act.nbytes, Kernel.GEMM, inner * flops)
            to_x = new(tape, x_shape, dtype, "grad_mlp", to_x.nbytes)
        acts.clear()
        return [to_x, *(g for pair in (*pairs, down) for g in (None, *pair))]

    node = tape.node((x, *weights), (x,), backward)
    held = []
    for _ in range(inner):
        held.append(new(tape, (rows, ffn), dtype, "mlp_fc1", x_bytes, Kernel.GEMM, flops))
        tape.save(node, held[-1])
    held += [new(tape, (rows, ffn), dtype, "mlp_act", held[0].nbytes) for _ in range(1 if gated else 2)]
    out = new(tape, x_shape, dtype, "mlp", held[-1].nbytes, Kernel.GEMM, flops)
    out.node = node
    return out


def _low_rank_grads(tape: Tape, rows: int, rank: int, pair: list[Param], dtype: str) -> list[Tensor]:
    """Gradients of one adapter; the two low-rank tensors are temporary."""
    lows = [new(tape, (rows, rank), dtype, "grad_lora_low", flops=2 * rows * p.numel, kernel=Kernel.GEMM) for p in pair]
    return [new(tape, p.shape, dtype, "grad_lora", lows[0].nbytes, Kernel.GEMM, 2 * rows * p.numel) for p in pair]


# ---- attention --------------------------------------------------------------------------------------------------
def attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """Nemotron-H's grouped-query attention, without positions, of `x` [batch, sequence, hidden].

    Returns x's shape. `path`: name of the attention module in the layer.
    """
    tape, dim = env.tape, block.head_dim
    q, k, v = (aten.to_heads(tape, linear(env, x, f"{path}.{part}_proj"), dim) for part in "qkv")
    out = core_attention(env, q, k, v, by_torch=env.options.sdpa)
    return linear(env, out.view(*x.shape[:2], block.q_size), f"{path}.o_proj")


def core_attention(env: Env, q: Tensor, k: Tensor, v: Tensor, *, by_torch: bool = False) -> Tensor:
    """Causal attention by SDPA of `q` [batch, sequence, heads, d]; returns q's shape.

    `k` and `v` may have fewer heads and are not expanded. With context parallelism keys and values go round the group:
    by TransformerEngine, which rings as in `te_attention`, or if `by_torch` by torch's ring, as its `context_parallel`
    replaces SDPA (0.7.0 `components/distributed/context_parallel/utils.py`, create_context_parallel_ctx; rotated by
    all-gather: `sharder.py`, shard_batch_load_balanced).
    """
    tape, run = env.tape, env.run
    if run.cp > 1 and by_torch:
        return ring_attention(tape, run, q, k, v)
    exchange, dtype = (run.cp - 1) * (k.nbytes + v.nbytes), k.dtype
    if exchange:
        tape.collective("send_recv", "cp", exchange, dtype)
    out = aten.scaled_dot_product_attention(tape, q, k, v, run.pairs)
    return _with_message(tape, out, 2 * exchange, dtype) if exchange else out


def _with_message(tape: Tape, out: Tensor, num_bytes: int, dtype: str) -> Tensor:
    """Tensor `out`, before whose gradient is used backward sends keys and values on again, and their gradients."""

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.collective("send_recv", "cp", num_bytes, dtype)
        return list(grads)

    return Tensor(out.storage, out.shape, out.dtype, tape.node((out,), (), backward))


def by_heads(env: Env, parts: list[Tensor]) -> Tensor:
    """SDPA of `parts`, query, key and value, copied to lie by heads; returns the query's shape, copied back.

    `components/attention/utils.py`, preprocess_args_and_kwargs_for_attn. The list, which is the last to name them, then
    names the copies.
    """
    tape = env.tape
    copies = [aten.contiguous(tape, part, f"{name}_by_head") for part, name in zip(parts, "qkv", strict=True)]
    if env.options.masks_padding:
        _has_padding(env)
    parts[:] = copies
    copies.clear()
    if env.run.cp > 1:
        return ring_attention(tape, env.run, *parts, by_heads=True)
    return aten.contiguous(tape, core_attention(env, *parts), "attention")


def _has_padding(env: Env) -> None:
    """Asks the batch's mask whether any token is padding; none is here: attention is causal without a mask."""
    _seen = env.tape.empty((env.run.batch, env.run.seq), "uint8", "is_token")
    env.tape.empty((1,), "uint8", "are_all")


def te_attention(env: Env, q: Tensor, k: Tensor, v: Tensor, *, sinks: Param | None = None, pairs: int = 0) -> Tensor:
    """TE's DotProductAttention by cuDNN of `q` [batch, sequence, heads, d].

    Returns [batch, sequence, heads, d of `v`]; `k` and `v` have as many heads or fewer. For backward it saves q, k, v,
    the output and the softmax statistics (fp32, one a head). Estimate: backward sums dq in fp32, and one number a row
    and head, like Megatron's (`operators/megatron/attention.py`). `sinks`: one learned number a head; `pairs`: of a
    query and a key, 0 for all of the workload.
    """
    tape, run = env.tape, env.run
    shapes, dtype = [t.shape for t in (q, k, v)], q.dtype
    batch, seq, heads, dim = q.shape
    v_dim = v.shape[3]
    flops = (pairs or run.pairs) // run.cp * heads * (dim + v_dim)  # two products of 2 FLOPs, half of them masked
    exchange, moved = (run.cp - 1) * (k.nbytes + v.nbytes), q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        if sinks is not None:
            made.append(tape.empty(sinks.shape, dtype, "grad_sinks") if sinks.trainable else None)
        _work = tape.empty((batch, seq, heads, dim + 1), "fp32", "attention_workspace")
        if exchange:
            tape.collective("send_recv", "cp", 2 * exchange, dtype)
        tape.compute(Kernel.ATTENTION, flops * run.cp * 5 // 2, 3 * moved,
                     shape_of_heads(dim, v_dim, batch * seq * heads, backward=True))
        return made

    node = tape.node((q, k, v, *([] if sinks is None else [sinks])), (q, k, v), backward)
    out = tape.empty((batch, seq, heads, v.shape[3]), dtype, "attention")
    statistics = tape.empty((batch, seq, heads), "fp32", "softmax_statistics")
    if exchange:
        tape.collective("send_recv", "cp", exchange, dtype)
    tape.compute(Kernel.ATTENTION, flops * run.cp, moved + out.nbytes, shape_of_heads(dim, v_dim, batch * seq * heads))
    tape.save(node, out, statistics)
    out.node = node
    return out
