"""Families of transformers 5.23 with layers of their own (`models/phi3`, `olmo2`, `glm`, ...): what differs from Llama.

Phi-3: query, key and value are slices of one product, whose gradients are each written into zeros of the whole. What is
rotated is joined with what is not, even where that is nothing; the result is in the order of heads.

OLMo 2: a norm multiplies by its weight in fp32 without a cast of it. Query and key pass their norms before they are cut
into heads. The tables are fp32, and so is the rotation, whose results are cast back when both are there; where FSDP2's
hook casts a layer's inputs, both are in the compute dtype.

GLM-4 turns neighbours of a head: tables are repeated for it, and what is not rotated is joined again. ERNIE 4.5 does so
in fp32 over all of a head, Cohere 2 over tables that are repeated already. Cohere 2's norm is plain operators in fp32.
Ministral 3 multiplies a rotated query by a number of its position, which each layer makes anew in fp32. Phi's GELU is
written out (`activations.py`, NewGELUActivation). Nemotron's LayerNorm adds one to its weight.

Gemma 4: query, key and value each pass their norm before the next is projected; query and key are turned before heads
come first.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Attention, Branch
from simcore.operators.automodel.adapters.split import adapted_whole_row
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf.autocast import is_autocast, narrowed
from simcore.operators.hf.layers import (
    Core,
    Inputs,
    RotateBoth,
    column,
    core_of,
    has_flash_attention,
    linear,
    pair_of,
    rotate_a_part,
    row,
    runs_math,
)
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import cut_columns, gathered_columns, sum_everywhere, whole_columns
from simcore.operators.shared.rms_norm import rms_norm_by_power, rms_norm_in_fp32
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["cohere2_norm", "cohere2_rotate", "ernie_rotate", "gemma4_attention", "glm_rotate", "ministral3_turn",
           "nemotron_norm", "nemotron_rotate", "new_gelu", "olmo2_attention", "phi3_attention",
           "phi3_mlp", "two_linears"]


Activation = Callable[[Tape, Tensor], Tensor]
"""(tape, x) -> a tensor like `x`."""


def phi3_attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs,
                   core: Core | None = None) -> Tensor:
    """Output of `Phi3Attention` for `inputs.hidden`, in its shape.

    `core`: attention without its projections, None for `core_of`.
    """
    block, name = branch.block, branch.name
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    qkv = _summed_part(tape, run, f"{name}.qkv_proj", inputs.hidden) if run.tp > 1 else linear(
        tape, run, f"{name}.qkv_proj", inputs.hidden)
    q, k, v = (aten.slice_last(tape, qkv, size) for size in (block.q_size, block.kv_size, block.kv_size))
    by_liger = hf_liger.kernels_of(run).rope
    q, k = (aten.to_heads(tape, x, block.head_dim, copy_grad=not by_liger) for x in (q, k))
    unfused = core is not None or runs_math(run, block, inputs.mask)
    v = aten.to_heads(tape, v, block.head_dim, copy_grad=unfused)
    q, k = hf_liger.rotate_both(tape, q, k, inputs.cos, inputs.sin, copy_grads=unfused, copies=True) if by_liger else (
        _rotated_and_joined(tape, q, k, inputs.cos, inputs.sin))
    out = core(q, k, v) if core else core_of(tape, run, block, (q, k, v), inputs.mask)
    out = out if core or by_liger else aten.contiguous(tape, out, "attention")
    out = out.view(*out.shape[:2], block.q_size)
    if run.tp > 1:  # attention is whole on every rank
        return whole_columns(tape, run, column(tape, run, f"{name}.o_proj", "o_proj", out), "o_proj_whole")
    return linear(tape, run, f"{name}.o_proj", out)


def _summed_part(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of the linear `name` for `x`, equal on all tp ranks, of which each multiplies its columns."""
    label = name.rpartition(".")[2]
    part = cut_columns(tape, run, x, f"{label}_input")
    return sum_everywhere(tape, row(tape, run, name, label, part), f"{label}_sum")


def _rotated_and_joined(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q_turned, q_rest = _parts(tape, q, cos.shape[-1])
    k_turned, k_rest = _parts(tape, k, cos.shape[-1])
    q_out = aten.cat(tape, aten.rotate_halves(tape, q_turned, cos, sin), q_rest)
    k_out = aten.cat(tape, aten.rotate_halves(tape, k_turned, cos, sin), k_rest)
    return q_out, k_out


def _parts(tape: Tape, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A slice of everything is the tensor itself (torch 2.13 `TensorIndexing.h`, applySlice)."""
    dim = x.shape[-1]
    return (x if size == dim else aten.slice_last(tape, x, size)), aten.slice_last(tape, x, dim - size)


def phi3_mlp(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of `Phi3MLP` for `x` [..., hidden], in x's shape; `name`: the module in the layer.

    Gate and up, halves of one product, both live until it returns.
    """
    if run.tp > 1:
        return _split_mlp(tape, run, name, x)
    gate, up = aten.chunk(tape, linear(tape, run, f"{name}.gate_up_proj", x))
    if hf_liger.kernels_of(run).gated:
        return linear(tape, run, f"{name}.down_proj", hf_liger.gated(tape, gate, up, copies=True))
    up = aten.mul(tape, up, aten.silu(tape, gate))
    return linear(tape, run, f"{name}.down_proj", up)


def _split_mlp(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """`Phi3MLP` over tp, with DTensors between its linears (Automodel 0.7.0 `_parallelize_phi3`).

    Halves of a product that is cut by outputs are gathered first, gate and product are whole; backward is of this
    rank's columns.
    """
    local = column(tape, run, f"{name}.gate_up_proj", "gate_up_proj", x)
    gate, up = _gathered_halves(tape, run, local)
    act = _on_whole(tape, run, "silu", gate)
    if tape.frame is None and act.node is not None:  # views of a DTensor refer to it
        act.node.saved.append(local.detach())
    out = _on_whole(tape, run, "mul", up, act)
    del up, act  # gate, a view of what was gathered, lives until the MLP returns
    return sum_everywhere(tape, _down(tape, run, f"{name}.down_proj", out), "down_proj_sum")


def _gathered_halves(tape: Tape, run: LayerWorkload, local: Tensor) -> tuple[Tensor, Tensor]:
    """Halves of the gathered columns of `local`; their gradients, cut, are gathered, joined and cut again."""
    tp, shape, dtype = run.tp, local.shape, local.dtype
    whole, half = (*shape[:-1], shape[-1] * tp), (*shape[:-1], shape[-1] * tp // 2)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        parts = [gathered_columns(tape, tp, half, dtype, "grad_half") for _ in grads]
        joined = aten.new(tape, whole, dtype, "grad_halves", kernel=Kernel.COPY)
        parts.clear()
        grads.clear()
        out = aten.new(tape, shape, dtype, "grad_gate_up", kernel=Kernel.COPY)
        del joined
        return [out]

    node = tape.node((local,), (), backward)
    made = gathered_columns(tape, tp, whole, dtype, "gate_up")
    return Tensor(made.storage, half, dtype, node), Tensor(made.storage, half, dtype, node, 1)


def _on_whole(tape: Tape, run: LayerWorkload, name: str, *inputs: Tensor) -> Tensor:
    """Pointwise operator of whole tensors, whose gradients are of this rank's columns, cut out of what was kept."""
    shape, dtype = inputs[0].shape, inputs[0].dtype
    part, count = (*shape[:-1], shape[-1] // run.tp), len(inputs)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        made: list[Tensor | None] = []
        for _ in range(count):
            _cut = aten.new(tape, part, dtype, f"{name}_part", kernel=Kernel.COPY)
            made.append(aten.new(tape, part, dtype, f"grad_{name}"))
            del _cut
        return made

    node = tape.node(inputs, inputs, backward)
    out = aten.new(tape, shape, dtype, name, sum(x.nbytes for x in inputs))
    out.node = node
    return out


def _down(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Partial sums of the linear `name` for whole rows `x`; the gradient of its weight is whole, of x it is cut."""
    weight = run.params[f"{name}.weight"]
    (n, own), dtype, x_shape, rows = weight.shape, x.dtype, x.shape, x.numel // x.shape[-1]
    flops, w_needs, moved = 2 * rows * weight.numel, weight.trainable, x.nbytes

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        to_weight = aten.new(tape, (n, own * run.tp), dtype, "grad_weight", moved, Kernel.GEMM,
                             flops * run.tp) if w_needs else None
        return [aten.new(tape, (*x_shape[:-1], own), dtype, "grad_down_proj", moved, Kernel.GEMM, flops), to_weight]

    node = tape.node((x, weight), (*[x] * w_needs, weight), backward)
    cut = aten.new(tape, (*x_shape[:-1], own), dtype, "down_proj_input", kernel=Kernel.COPY)
    out = aten.new(tape, (*x_shape[:-1], n), dtype, "down_proj", cut.nbytes, Kernel.GEMM, flops)
    del cut
    out.node = node
    pair = pair_of(run, name)
    return out if pair is None else adapted_whole_row(tape, run, x, pair, out, "down_proj")


# ---- OLMo 2 ----------------------------------------------------------------------------------------------------------
def olmo2_attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None,
                    norm: Callable[[Tape, Param, Tensor], Tensor] = rms_norm_in_fp32,
                    turn_both: RotateBoth | None = None) -> Tensor:
    """Output of attention (`Olmo2Attention`) for `inputs.hidden`, in its shape; `core`: as of `layers.attention`.

    `norm`: of query and of key; OLMoE's attention has Llama's, and is the same besides; MiniMax-M2's turns a part of
    each head, by `turn_both`.
    """
    block, name, x = branch.block, branch.name, inputs.hidden
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    dim = block.head_dim
    query, key = (_normed(tape, run, f"{name}.{part}", x, norm) for part in "qk")
    value = linear(tape, run, f"{name}.v_proj", x)
    by_liger = hf_liger.kernels_of(run).rope
    query, key = (aten.to_heads(tape, part, dim, copy_grad=not by_liger) for part in (query, key))
    value = aten.to_heads(tape, value, dim, copy_grad=core is not None)
    query, key = hf_liger.rotate_both(tape, query, key, inputs.cos, inputs.sin, copy_grads=core is not None) if (
        by_liger) else (turn_both or _rotated)(tape, query, key, inputs.cos, inputs.sin)
    out = core(query, key, value) if core else core_of(tape, run, block, (query, key, value), inputs.mask)
    if 0 < block.rotated < dim and not runs_math(run, block, inputs.mask):  # lies by heads, as joined queries do
        out = aten.contiguous(tape, out, "attention")
    return linear(tape, run, f"{name}.o_proj", out.view(*out.shape[:2], out.shape[2] * dim))


def _rotated(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the type of the tables, then cast back to their own."""
    dtype = query.dtype
    turned_query, turned_key = aten.rotate_halves(tape, query, cos, sin), aten.rotate_halves(tape, key, cos, sin)
    return aten.cast(tape, turned_query, dtype), aten.cast(tape, turned_key, dtype)


def _normed(tape: Tape, run: LayerWorkload, path: str, x: Tensor,
            norm: Callable[[Tape, Param, Tensor], Tensor]) -> Tensor:
    """Query or key; what the norm is given lives until it returns."""
    given = linear(tape, run, f"{path}_proj", x)
    if hf_liger.normalises_heads(run, ""):
        return hf_liger.rms_norm(tape, run.params[f"{path}_norm.weight"], given, keeps_grad=True)
    return norm(tape, run.params[f"{path}_norm.weight"], given)


# ---- GLM-4, ERNIE 4.5, Cohere 2: neighbours are turned ---------------------------------------------------------------
def _repeated(tape: Tape, table: Tensor) -> Tensor:
    """The first half of a table, each number twice (`repeat_interleave`)."""
    return aten.select(tape, table, table.shape, table.dtype, "repeated")


def glm_rotate(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [b, s, heads, d], turned in their first dimensions and joined with the rest."""
    cos = _repeated(tape, cos)
    sin = _repeated(tape, sin)
    return rotate_a_part(tape, query, key, cos, sin)


def ernie_rotate(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [b, s, heads, d], turned in fp32 and cast back when both are there."""
    cos = _repeated(tape, cos)
    sin = _repeated(tape, sin)
    dtype = query.dtype
    turned = tuple(_turned_in_fp32(tape, x, cos, sin) for x in (query, key))
    return aten.cast(tape, turned[0], dtype), aten.cast(tape, turned[1], dtype)


def _turned_in_fp32(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    straight = aten.mul(tape, aten.cast(tape, x, "fp32"), cos, "rotary")
    return aten.add(tape, straight, aten.mul(tape, aten.cast(tape, aten.rotate_half(tape, x), "fp32"), sin, "rotary"),
                    "rotary")


def cohere2_rotate(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [b, s, heads, d], cast to fp32, turned and cast back when both are there."""
    dtype = query.dtype
    wide = (aten.cast(tape, query, "fp32"), aten.cast(tape, key, "fp32"))
    turned = tuple(aten.rotate_halves(tape, x, cos, sin) for x in wide)
    return aten.cast(tape, turned[0], dtype), aten.cast(tape, turned[1], dtype)


def cohere2_norm(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """LayerNorm of `x` without a bias, in fp32 (`Cohere2LayerNorm`), in its shape and type."""
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    mean = aten.mean(tape, x)
    variance = aten.mean(tape, aten.square(tape, aten.sub(tape, x, mean)))
    x = aten.mul(tape, aten.sub(tape, x, mean), aten.rsqrt(tape, aten.add_scalar(tape, variance)))
    x = aten.mul(tape, aten.cast(tape, weight, "fp32"), x)
    return aten.cast(tape, x, dtype)


def nemotron_rotate(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [b, s, heads, d], turned in their first dimensions; both live until both are joined."""
    held: list[Tensor] = []
    return rotate_a_part(tape, query, key, cos, sin, held)


def nemotron_norm(tape: Tape, run: LayerWorkload, weight: Param, bias: Param, x: Tensor) -> Tensor:
    """LayerNorm of `x` by one more than the weight (`NemotronLayerNorm1P`), in its shape.

    Under autocast all three are cast to its type first.
    """
    scale = aten.add_scalar(tape, weight)
    if is_autocast(run):
        x, narrow = narrowed(tape, run, x), narrowed(tape, run, scale)
        short = aten.cast(tape, bias, run.compute)
        del scale
        return aten.layer_norm(tape, x, narrow, short)
    return aten.layer_norm(tape, x, scale, bias)


# ---- Phi, StarCoder 2: two linears -----------------------------------------------------------------------------------
def new_gelu(tape: Tape, x: Tensor, *, run: LayerWorkload) -> Tensor:
    """GELU by tanh of `x`, operator by operator, in its shape and type; in fp32 from its power on under autocast."""
    half = aten.mul_scalar(tape, x)
    inner = aten.add(tape, x, aten.mul_scalar(tape, aten.square(tape, _wide(tape, run, x))))
    inner = aten.mul_scalar(tape, inner)
    inner = aten.tanh(tape, inner)
    inner = aten.add_scalar(tape, inner)
    return aten.mul(tape, half, inner)


def _wide(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    return aten.cast(tape, x, "fp32") if is_autocast(run) else x


def two_linears(tape: Tape, run: LayerWorkload, first: str, second: str, x: Tensor, activate: Activation) -> Tensor:
    """`second(activate(first(x)))` for `x` [..., hidden], in x's shape; `first`, `second`: modules in the layer."""
    x = linear(tape, run, first, x)
    x = activate(tape, x)
    return linear(tape, run, second, x)


def ministral3_turn(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation of `q` and `k` [b, s, heads, d], then of `q` by what its position is worth (get_llama_4_attn_scale)."""
    q, k = aten.rotate_halves(tape, q, cos, sin), aten.rotate_halves(tape, k, cos, sin)
    return aten.mul(tape, q, _worth(tape, q), "scaled"), k


def _worth(tape: Tape, q: Tensor) -> Tensor:
    """`1 + beta * log(1 + floor(position / original positions))`, [1, s, 1, 1] in the type of `q`."""
    worth, shape = Tensor(None, (1, q.shape[1], 1, 1), "fp32"), (1, q.shape[1], 1, 1)
    for step in ("positions", "floor", "plus_one", "log", "beta", "worth"):
        worth = aten.select(tape, worth, shape, "fp32", step)
    return aten.cast(tape, worth, q.dtype)


# ---- Gemma 4 ---------------------------------------------------------------------------------------------------------
def gemma4_attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None) -> Tensor:
    """Output of attention for `inputs.hidden`, in its shape; `core`: without projections, None for `core_of`."""
    block, name = branch.block, branch.name
    assert isinstance(block, Attention)
    query = _normed_heads(tape, run, f"{name}.q", _of_heads(tape, run, f"{name}.q_proj", block, inputs.hidden))
    query = _turned_heads(tape, query, inputs)
    if block.borrows:
        assert inputs.lending is not None
        key, value = inputs.lending.borrow(tape)
    else:
        key, value = _key_and_value(tape, run, branch, inputs, has_core=core is not None)
        if inputs.lending is not None:
            inputs.lending.lend(tape, key, value)
    dtype, is_wide = query.dtype, core is None and HfOptions.of(run.options).wide_sdpa
    if is_wide:  # upstream's own variables live on
        _narrow = (query, key, value)
        query, key, value = (aten.cast(tape, x, "fp32") for x in _narrow)
    out = core(query, key, value) if core else core_of(tape, run, block, (query, key, value), inputs.mask)
    out = aten.cast(tape, out, dtype)
    return linear(tape, run, f"{name}.o_proj", out.view(*out.shape[:2], out.shape[2] * block.head_dim))


def _key_and_value(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, *,
                   has_core: bool) -> tuple[Tensor, Tensor]:
    """Key, turned, and value, each [b, s, heads, d].

    Where values are the keys' products, these live until the values' norm is there. Gradients of values that are
    repeated for every head, or of eager attention (`has_core`), arrive by heads and are copied; the keys' norm turns
    its own.
    """
    block, name, x = branch.block, branch.name, inputs.hidden
    assert isinstance(block, Attention)
    repeats = block.num_kv_heads < block.num_heads and (inputs.mask is not None or block.head_dim > aten.WIDEST)
    copies = block.num_kv_heads > 1 and (has_core or (repeats and not has_flash_attention(run)))
    key = _of_heads(tape, run, f"{name}.k_proj", block, x, copies=copies and block.values_from_keys)
    value = key if block.values_from_keys else _of_heads(tape, run, f"{name}.v_proj", block, x, copies=copies)
    key = _normed_heads(tape, run, f"{name}.k", key)
    key = _turned_heads(tape, key, inputs)
    value = rms_norm_by_power(tape, None, value)
    return key, value


def _of_heads(tape: Tape, run: LayerWorkload, name: str, block: Attention, x: Tensor, *,
           copies: bool = False) -> Tensor:
    return aten.to_heads(tape, linear(tape, run, name, x), block.head_dim, copy_grad=copies)


def _normed_heads(tape: Tape, run: LayerWorkload, path: str, x: Tensor) -> Tensor:
    return rms_norm_by_power(tape, run.params[f"{path}_norm.weight"], x)


def _turned_heads(tape: Tape, x: Tensor, inputs: Inputs) -> Tensor:
    assert inputs.cos is not None
    assert inputs.sin is not None
    return aten.rotate_halves(tape, x, inputs.cos, inputs.sin)
