"""Norm, linear, attention and MLP of transformers 5.23 (`models/llama`, `models/qwen3`, ...), with SDPA or flash-attn.

Same operators in the same order as the modelling code, and local variables that live as long as its own do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simcore.models.blocks import Attention, Branch, Mlp
from simcore.operators.automodel.adapters.lora import linear_lora
from simcore.operators.automodel.adapters.split import adapted_column, adapted_row, apart, is_turned
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf.autocast import is_autocast, narrowed, product
from simcore.operators.hf.gemma4.lending import Lending
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.packed import packed_linear
from simcore.operators.hf.peft import dora_sum, has_dora, lora_part
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import same_everywhere, sum_everywhere
from simcore.operators.shared.float8_linear import float8_linear
from simcore.operators.shared.math_attention import math_attention
from simcore.operators.shared.ring_attention import ring_attention
from simcore.operators.shared.rms_norm import rms_norm, rms_norm_from_zero
from simcore.operators.shared.sequences.deepspeed import over_shared
from simcore.operators.shared.sequences.verl import over_ranks
from simcore.operators.shared.splits import autotp
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["Inputs", "attention", "column", "core_of", "gated_attention", "has_eager_attention", "has_flash_attention",
           "is_of_hub", "linear", "mlp", "pair_of", "rotate_a_part", "row", "runs_math",
           "swiglu"]


class Inputs(NamedTuple):
    """Tensors that a layer is called with, made by the embedding or the layer before.

    `hidden`: hidden state [batch, seq, hidden]; `cos`, `sin`: rotary tables [1, seq, 1, rotated elements of a head],
    None without rotation; `positions`: position ids, None if the layer gets none; `mask`: attention mask, None without
    one. `drops`: attention drops some of its output, before it lets go of its own tensors. `own`: an input of the layer
    by itself; `lending`: keys and values that pass between layers.
    """

    hidden: Tensor
    cos: Tensor | None
    sin: Tensor | None
    positions: Tensor | None
    mask: Tensor | None = None
    drops: bool = False
    own: Tensor | None = None
    lending: Lending | None = None


def linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output [..., n] of the linear module `name` for `x` [..., k], with its adapter if it has one.

    With one it is as [Note: PEFT's adapters] says. Automodel's are one function. `name` is relative to the layer, ""
    for the head. Over tp the last linears of attention and MLP have a part of the inputs (RowwiseParallel), which a sum
    follows, others a part of the outputs (ColwiseParallel), whose gradients of `x` are summed each by itself.
    """
    if run.tp == 1:
        return _whole_linear(tape, run, name, x)
    label = name.removeprefix(tape.scope) or "logits"
    if HfOptions.of(run.options).shards == "tensors":
        return _of_tensors(tape, run, name, label, x)
    return _split_linear(tape, run, name, label, x)


def _whole_linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """`linear` of what a rank has."""
    prefix, label = f"{name}." if name else "", name.removeprefix(tape.scope) or "logits"
    if run.params[f"{prefix}weight"].packed is not None:
        return packed_linear(tape, run, prefix, label, x)
    weight, bias = run.params[f"{prefix}weight"], run.params.get(f"{prefix}bias")
    if weight.dtype == "fp8":
        return float8_linear(tape, x, weight, bias, label)
    base = product(tape, run, x, weight, label, bias=bias)
    if f"{prefix}lora_A.weight" in run.params:
        return linear_lora(tape, run, prefix, x, base, label)
    lora_a = run.params.get(f"{prefix}lora_a.weight")
    if lora_a is None:
        return base
    x, dtype = aten.cast(tape, x, lora_a.dtype), base.dtype
    if has_dora(run, prefix):
        total = dora_sum(tape, run, prefix, label, x, base, lambda: run.params[f"{prefix}weight"])
    else:
        total = aten.add(tape, base, lora_part(tape, run, prefix, label, x), f"{label}.sum")
    del base
    return aten.cast(tape, total, dtype)


_ROWS = ("o_proj", "down_proj", "dense", "fc2", "c_proj")
"""Modules whose inputs tp splits; outputs of all others are."""


def _split_linear(tape: Tape, run: LayerWorkload, name: str, label: str, x: Tensor) -> Tensor:
    """Output of the linear module `name` for `x`: this rank's columns of it, or the sum of all ranks' parts.

    `label`: name of the output's storage.
    """
    if not name.endswith(_ROWS):
        return column(tape, run, name, label, x)
    return sum_everywhere(tape, row(tape, run, name, label, x), f"{label}_sum")


def _of_tensors(tape: Tape, run: LayerWorkload, name: str, label: str, x: Tensor) -> Tensor:
    """Output of the linear `name` as DeepSpeed's AutoTP has it; a head whose weight is the embedding's is whole."""
    prefix = f"{name}." if name else ""
    weight, bias = run.params[f"{prefix}weight"], run.params.get(f"{prefix}bias")
    if weight.tied:
        return _whole_linear(tape, run, name, x)
    return (autotp.row if name.endswith(_ROWS) else autotp.column)(tape, x, weight, bias, label)


def column(tape: Tape, run: LayerWorkload, name: str, label: str, x: Tensor) -> Tensor:
    """This rank's columns of the output of `name` for `x`, equal on all tp ranks; `label`: the output's name."""
    pair, x = pair_of(run, name), same_everywhere(tape, x, f"{label}_input")
    prefix = f"{name}." if name else ""
    base = product(tape, run, x, run.params[f"{prefix}weight"], label, run.params.get(f"{prefix}bias"))
    return base if pair is None else adapted_column(tape, run, x, pair, base, label)


def pair_of(run: LayerWorkload, name: str) -> tuple[Param, Param] | None:
    """Automodel's adapter (A, B) of the linear `name`; None without."""
    a = run.params.get(f"{name}.lora_A.weight")
    return None if a is None else (a, run.params[f"{name}.lora_B.weight"])


def row(tape: Tape, run: LayerWorkload, name: str, label: str, x: Tensor) -> Tensor:
    """A partial sum of `name` for this rank's columns `x`.

    A bias, whole on every rank, is divided by their number first, so that it is one too.
    """
    pair, trainer, other = pair_of(run, name), HfOptions.of(run.options).automodel, x
    if pair is not None and trainer is not None and is_turned(run, x, pair[0], trainer.turns_adapters_from):
        x, other = apart(tape, run, x, label)
    weight, bias = run.params[f"{name}.weight"], run.params.get(f"{name}.bias")
    base = product(tape, run, x, weight, label) if bias is None else aten.linear(tape, x, weight, label,
                                                                              bias=_part_of(tape, bias))
    del x
    return base if pair is None else adapted_row(tape, run, other, pair, base, label)


def _part_of(tape: Tape, bias: Param) -> Tensor:
    node = tape.node((bias,), (), lambda tape, grads, saved: list(grads))
    out = aten.new(tape, bias.shape, bias.dtype, "bias_part")
    out.node = node
    return out


Rotate = Callable[[Tape, Tensor, Tensor, Tensor], Tensor]
"""(tape, query or key, cos, sin) -> rotated."""

RotateBoth = Callable[[Tape, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(tape, query, key, cos, sin) -> both rotated."""


Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query, key, value) by heads, rotated -> output by heads."""


def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, turn: Rotate | None = None,
              core: Core | None = None, head_norm: Callable[[Tape, Param, Tensor], Tensor] | None = None,
              turn_both: RotateBoth | None = None, out_proj: str = "o_proj",
              late_norm: Callable[[Tape, Param, Tensor], Tensor] | None = None,
              of_key: Callable[[Tape, Tensor], Tensor] | None = None) -> Tensor:
    """Output of grouped-query attention for `inputs.hidden`, in its shape.

    Head counts follow from the weights that this rank has. `turn`: rotation of query or key, None for halves; `core`:
    attention without its projections, None for `core_of`. `head_norm`: norm of each head of query and key behind all
    three projections, None for Qwen3's, behind each its own. `turn_both`: rotation of query and key in one function.
    `out_proj`: name of the output projection. `late_norm`: norm of each head of query and key behind their rotation.
    `of_key`: what is done with the key before the value is projected.
    """
    block = branch.block
    assert isinstance(block, Attention)
    name, dim, x = branch.name, block.head_dim, inputs.hidden
    unfused = _has_unfused_attention(run, block, inputs.mask)
    copies = not hf_liger.kernels_of(run).rope if block.rotary else unfused
    first, normed = head_norm is hf_liger.norm_of_turned, not (head_norm or late_norm)  # first: several heads come so
    q = _heads(tape, run, name, "q", x, block, copy_grad=copies or (first and block.num_heads > 1), normed=normed)
    k = _heads(tape, run, name, "k", x, block, copy_grad=copies or (first and block.num_kv_heads > 1), normed=normed)
    k = of_key(tape, k) if of_key else k
    apart = core is not None or unfused or HfOptions.of(run.options).sequences == "ring" or (
        copies_heads(run) and (block.num_kv_heads == run.cp or run.batch > 1))
    v = aten.to_heads(tape, linear(tape, run, f"{name}.v_proj", x), dim, copy_grad=apart)
    if head_norm and block.qk_norm:
        q = head_norm(tape, _of_heads(run, f"{name}.q_norm.weight"), q)
        k = head_norm(tape, _of_heads(run, f"{name}.k_norm.weight"), k)
    if inputs.cos is not None and inputs.sin is not None and block.rotary:
        turned = turn_both or _rotation_of(run, block, turn or aten.rotate_halves, copy_grads=unfused)
        q, k = turned(tape, q, k, inputs.cos, inputs.sin)
    if late_norm:
        q = late_norm(tape, run.params[f"{name}.query_layernorm.weight"], q)
        k = late_norm(tape, run.params[f"{name}.key_layernorm.weight"], k)
    out = core(q, k, v) if core else core_of(tape, run, block, (q, k, v), inputs.mask)
    if 0 < block.rotated < dim and not runs_math(run, block, inputs.mask):  # lies by heads, as joined queries do
        out = aten.contiguous(tape, out, "attention")
    out = linear(tape, run, f"{name}.{out_proj}", out.view(*out.shape[:2], out.shape[2] * dim))
    return aten.dropout(tape, out) if inputs.drops else out


def _rotation_of(run: LayerWorkload, block: Attention, turn: Rotate, *, copy_grads: bool) -> RotateBoth:
    """Function for query and key of one that turns each (`turn`), of a part of each head, or Liger's."""
    if 0 < block.rotated < block.head_dim:
        return rotate_a_part
    if hf_liger.kernels_of(run).rope:
        return partial(hf_liger.rotate_both, copy_grads=copy_grads)
    return lambda tape, q, k, cos, sin: (turn(tape, q, cos, sin), turn(tape, k, cos, sin))


def gated_attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None) -> Tensor:
    """Output of attention for `inputs.hidden`, in its shape, weighed by a sigmoid (`Qwen3NextAttention`).

    `core`: attention without its projections, None for `core_of`. The query's projection has the gate in the second
    half of each head; norms of query and key multiply by one more than their weight.
    """
    block, name = branch.block, branch.name
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    x, dim = inputs.hidden, block.head_dim
    both = aten.to_heads(tape, linear(tape, run, f"{name}.q_proj", x), 2 * dim)
    q, gate = aten.chunk(tape, both)
    del both
    gate = aten.contiguous(tape, gate, "gate").view(*x.shape[:2], block.q_size)
    q = rms_norm_from_zero(tape, run.params[f"{name}.q_norm.weight"], q)
    k = aten.to_heads(tape, linear(tape, run, f"{name}.k_proj", x), dim, copy_grad=True)
    k = rms_norm_from_zero(tape, run.params[f"{name}.k_norm.weight"], k)
    v = aten.to_heads(tape, linear(tape, run, f"{name}.v_proj", x), dim, copy_grad=core is not None)
    q, k = rotate_a_part(tape, q, k, inputs.cos, inputs.sin)
    out = core(q, k, v) if core else core_of(tape, run, block, (q, k, v), inputs.mask)
    out = aten.contiguous(tape, out, "attention")  # lies by heads, as joined queries do
    out = aten.mul(tape, out.view(*out.shape[:2], block.q_size), aten.sigmoid(tape, gate), "gated")
    return linear(tape, run, f"{name}.o_proj", out)


def has_eager_attention(run: LayerWorkload) -> bool:
    """True if attention runs as torch's matrix products (attn_implementation eager)."""
    return HfOptions.of(run.options).attn_implementation == "eager"


def _has_unfused_attention(run: LayerWorkload, block: Attention, mask: Tensor | None) -> bool:
    """True if attention is plain operators; the hub's code runs SDPA for eager."""
    return runs_math(run, block, mask) or (has_eager_attention(run) and not is_of_hub(run))


def runs_math(run: LayerWorkload, block: Attention, mask: Tensor | None) -> bool:
    """True if torch's SDPA has no kernel: [Note: attention without a kernel]."""
    return (HfOptions.of(run.options).math_attention and mask is None and block.num_kv_heads < block.num_heads
            and block.head_dim <= aten.WIDEST)


def has_flash_attention(run: LayerWorkload) -> bool:
    """True if attention is flash-attn's kernel instead of torch's SDPA (attn_implementation)."""
    return HfOptions.of(run.options).attn_implementation == "flash_attention_2"


def is_of_hub(run: LayerWorkload) -> bool:
    """True if the layers run the code of the model's own repository."""
    return HfOptions.of(run.options).is_of_hub


def core_of(tape: Tape, run: LayerWorkload, block: Attention, parts: tuple[Tensor, Tensor, Tensor],
            mask: Tensor | None) -> Tensor:
    """Attention without its projections of `parts` (query, key, value), each [b, s, heads, d].

    Returns a tensor of query's shape. With a `mask` of packed sequences or of a window torch runs another kernel.
    Kernels count half of the pairs of a query and a key, as attention is causal. Within a window a query meets all of
    its `block.window` keys, so twice as many are passed.
    """
    pairs = min(run.pairs, 2 * block.window * run.tokens) if block.window else run.pairs
    if block.sinks:
        return aten.flash_attention_with_sinks(tape, *parts, pairs, run.sequences)
    value, key, query = (narrowed(tape, run, part) for part in reversed(parts))
    if HfOptions.of(run.options).sequences == "ring":
        return ring_attention(tape, run, query, key, value)
    if copies_heads(run):
        out = over_shared(tape, run.cp, (query, key, value), partial(_of_a_part, tape, run, run.cp * pairs),
                          copies_once=has_flash_attention(run))
        return aten.contiguous(tape, out, "attention") if run.batch > 1 else out
    if run.cp > 1:  # a rank has all tokens of a part of the heads: as many pairs for each as all ranks together
        return over_ranks(tape, run.cp, (query, key, value), lambda q, k, v: aten.flash_attention(
            tape, q, k, v, run.cp * pairs, run.sequences))
    if has_flash_attention(run):
        return aten.flash_attention(tape, query, key, value, pairs, run.sequences)
    if mask is not None:
        return aten.masked_attention(tape, query, key, value)
    if block.head_dim > aten.WIDEST:
        return aten.wide_attention(tape, query, key, value)
    if runs_math(run, block, mask):
        return math_attention(tape, query, key, value)
    return aten.scaled_dot_product_attention(tape, query, key, value)


def copies_heads(run: LayerWorkload) -> bool:
    """True if ranks share sequences by exchanges of heads that are copied together: [Note: ALST]."""
    return run.cp > 1 and HfOptions.of(run.options).sequences == "heads"


def _of_a_part(tape: Tape, run: LayerWorkload, pairs: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of a part of the heads, which lie one after another."""
    if has_flash_attention(run):
        return aten.flash_attention(tape, query, key, value, pairs, run.sequences)
    return aten.scaled_dot_product_attention(tape, query, key, value, pairs, by_heads=True)


def _heads(tape: Tape, run: LayerWorkload, name: str, part: str, x: Tensor, block: Attention, *, copy_grad: bool,
           normed: bool) -> Tensor:
    """Query or key by heads, if `normed` with their norm where there is one (`Qwen3Attention`)."""
    # A rotary gradient comes in [b, heads, s, d] order and is copied back, SDPA's own does not.
    by_liger = block.qk_norm and normed and hf_liger.normalises_heads(run, "")
    heads = aten.to_heads(tape, linear(tape, run, f"{name}.{part}_proj", x), block.head_dim,
                          copy_grad=copy_grad and not by_liger)
    if by_liger:
        return hf_liger.rms_norm(tape, _of_heads(run, f"{name}.{part}_norm.weight"), heads, copies_grad=copy_grad)
    if not (block.qk_norm and normed):
        return heads
    return rms_norm(tape, _of_heads(run, f"{name}.{part}_norm.weight"), heads, weight_in_fp32=False)


def _of_heads(run: LayerWorkload, name: str) -> Param:
    """Weight of a norm of heads; over tp its gradient is summed (replicated_with_grad_allreduce of transformers)."""
    weight = run.params[name]
    return replace(weight, summed="tp") if run.tp > 1 and not HfOptions.of(run.options).by_automodel else weight


def rotate_a_part(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor,
                  held: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """`q` and `k` [b, s, heads, d], both rotated in their first dimensions, then joined with the rest.

    As `models/bamba`, apply_rotary_pos_emb. `held`: gets what is joined, and with it `q` and `k`.
    """
    size = cos.shape[-1]
    q_turned, q_rest = aten.slice_last(tape, q, size), aten.slice_last(tape, q, q.shape[-1] - size)
    k_turned, k_rest = aten.slice_last(tape, k, size), aten.slice_last(tape, k, k.shape[-1] - size)
    q_out, k_out = aten.rotate_halves(tape, q_turned, cos, sin), aten.rotate_halves(tape, k_turned, cos, sin)
    if held is not None:
        held += [q_out, k_out, q_rest, k_rest]
    q_out = aten.cat(tape, q_out, aten.cast(tape, q_rest, q_out.dtype))  # autocast joins in the wider type
    k_out = aten.cat(tape, k_out, aten.cast(tape, k_rest, k_out.dtype))
    return q_out, k_out


def mlp(tape: Tape, run: LayerWorkload, name: str, block: Mlp, x: Tensor) -> Tensor:
    """Output of the MLP `name` for `x` [..., hidden], in x's shape.

    SwiGLU if the block is gated, with GELU in the place of SiLU if it says so, else relu squared between two linears.
    """
    if not block.gated:
        return linear(tape, run, f"{name}.down_proj", relu2(tape, run, linear(tape, run, f"{name}.up_proj", x)))
    if hf_liger.kernels_of(run).gated:
        gate = linear(tape, run, f"{name}.gate_proj", x)
        made = hf_liger.gated(tape, gate, linear(tape, run, f"{name}.up_proj", x))
        del gate
        return linear(tape, run, f"{name}.down_proj", made)
    return swiglu(tape, run, [f"{name}.{part}_proj" for part in ("gate", "up", "down")], x,
                  aten.gelu if block.gelu else aten.silu)


def swiglu(tape: Tape, run: LayerWorkload, linears: Sequence[str], x: Tensor,
           activate: Callable[[Tape, Tensor], Tensor] = aten.silu) -> Tensor:
    """`down(silu(gate(x)) * up(x))` for `x` [..., hidden], in x's shape; `linears`: names of gate, up and down.

    `activate`: in the place of SiLU.
    """
    gate = activate(tape, linear(tape, run, linears[0], x))
    product = aten.mul(tape, gate, linear(tape, run, linears[1], x))
    del gate
    return linear(tape, run, linears[2], product)


def relu2(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`relu(x) ** 2` in a new tensor like `x`; the input lives until the square is made.

    torch.square is a power, which autocast makes in fp32 (torch 2.13 `ATen/autocast_mode.h`, AT_FORALL_FP32).
    """
    kept = aten.relu(tape, x)
    return aten.square(tape, aten.cast(tape, kept, "fp32") if is_autocast(run) else kept)
