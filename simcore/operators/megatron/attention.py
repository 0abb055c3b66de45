"""Megatron-Core's self-attention with Transformer Engine's fused attention, and its dense MLP.

megatron-core 0.16.1 `transformer/attention.py`, `transformer/mlp.py`; TransformerEngine 2.18
`pytorch/attention/dot_product_attention/backends.py` and `utils.py`. Query, key and value must share a layout: the
query of grouped heads is copied by its reshape, keys and values (views at an offset) are made contiguous by TE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Mlp
from simcore.operators.megatron.attention_8_bits import attends_by_tensor, core_8_bits
from simcore.operators.megatron.exchange_heads import Work, attend, differentiate, send_gradient
from simcore.operators.megatron.ops.capped import capped_attention
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import act
from simcore.operators.megatron.ops.linear import norm_linear, row
from simcore.operators.megatron.ops.offload import offloaded
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.ops.query_groups import own_heads, split_columns
from simcore.operators.megatron.ops.rotation import turned_by_token
from simcore.operators.megatron.ops.weighed import weighed
from simcore.operators.megatron.sinks import grad_of_sinks, own_sinks
from simcore.operators.megatron.unfused import unfused_core
from simcore.operators.shared.quantizer import Producer
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["attention", "core", "mlp", "sees_by_bias", "turning_passes"]

_BIASED: Final = ("gemma3_text",)
"""Families that see images by a bias of their scores, as all pairs without a mask (Bridge 067f987d
models/gemma/gemma3_provider.py:260): cuDNN's kernel alone adds it."""
_BY_POSITION: Final = ("ministral3", "gemma3_text")
"""Decoders behind a tower whose positions are those of the sequence, the same in each."""


def sees_by_bias(options: MegatronOptions, family: str) -> bool:
    """True if attention's scores get a bias that says which tokens of images a token sees."""
    return options.reads_images and family in _BIASED


def attention(c: Context, block: Attention, x: Tensor, *, behind: bool = False) -> Tensor:
    """Output of self-attention for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included, and the one `behind` it; the caller adds the residual. Local: after sequence
    parallelism. Raises NotYet for attention sinks or windows in unfused attention.
    """
    query, key, value, gate = _split(c, block, norm_linear(c, "self_attention.linear_qkv", x))

    def attend(query: Tensor) -> Tensor:
        query = weighed(c, query)
        if block.sinks:
            return _with_sinks(c, block, (query, key, value))
        if sees_by_bias(c.options, c.kind.family):
            return _core(c, block.num_heads, (query, key, value), query.shape[1], plain=False,
                         pairs=2 * c.run.pairs, bias=True)
        if block.capped:
            return _capped(c, block, (query, key, value))
        return core(c, block.num_heads, query, key, value, plain=_is_plain(block), dropout=block.dropout,
                    window=block.window)

    out = offloaded(c, "core_attn", query, attend, release=(query, key, value))
    out = out if gate is None else _gated(c, out, gate)
    # `forward` holds query, key and value (views of their linear's output) until linear_proj has returned.
    return offloaded(c, "attn_proj", out, lambda x: row(c, "self_attention.linear_proj", x, behind=behind),
                     release=(out,))


def _with_sinks(c: Context, block: Attention, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """A learned number a head beside the softmax: cuDNN's kernel alone has it (TE 2.18 `utils.py`, softmax_type).

    Within a window a token sees no more than so many before it.
    """
    if c.has_unfused_attention:
        raise NotYet(Problem("framework_options.attention_backend", "not yet: attention sinks in unfused attention"))
    pairs = _pairs(c, block.window)
    sinks = c.param("self_attention.core_attention.softmax_offset")

    def run() -> Tensor:
        made = core_8_bits if attends_by_tensor(c) else _core
        return made(c, block.num_heads, parts, block.q_size // c.run.tp, plain=False, pairs=pairs, sinks=sinks)

    return c.region(run) if c.recomputes("core_attn") else run()


def _capped(c: Context, block: Attention, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Scores below a cap, by torch's kernel, or one by one with dropout, which is not served."""
    if block.dropout:
        raise NotYet(Problem("model.overrides.attention_dropout", "not yet: scores below a cap with dropout"))

    def run() -> Tensor:
        return capped_attention(c, block.num_heads, parts, _pairs(c, block.window))

    return c.region(run) if c.recomputes("core_attn") else run()


def _pairs(c: Context, window: int) -> int:
    """Twice the pairs of a query and a key that a kernel computes: all, or those within a `window` that is not 0."""
    return min(c.run.pairs, 2 * c.run.tokens * window) if window else c.run.pairs


def _split(c: Context, block: Attention, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Query, key, value, gate: views, but copies of query and gate where heads of several groups are put together."""
    q, kv = block.q_size // c.run.tp, max(block.kv_size // c.run.tp, block.head_dim)
    views = (own_heads(c, block, mixed) if c.run.tp > block.num_kv_heads else
             split_columns(c, mixed, (q, kv, kv, *((q,) if block.gated else ())), "grad_qkv", plain=_is_plain(block)))
    del mixed
    grouped = block.num_heads > block.num_kv_heads and block.num_kv_heads // c.run.tp > 1
    if block.qk_norm:
        wide = (q, kv) if block.whole_norms else (block.head_dim, block.head_dim)
        views[0] = _head_norm(c, "self_attention.q_layernorm", views[0], wide[0])
        views[1] = _head_norm(c, "self_attention.k_layernorm", views[1], wide[1])
    gate = None
    if block.gated:
        gate = _copied_gate(c, views.pop()) if grouped else views.pop()
    query, key, value = views
    if block.rotary:
        return _moved(c, query, "query", block), _moved(c, key, "key", block), value, gate
    return _moved(c, query, "query", block) if grouped and not block.qk_norm else query, key, value, gate


def _copied_gate(c: Context, x: Tensor) -> Tensor:
    """`gate.reshape(*gate.shape[:2], -1, hn)` of several groups: a copy, whose gradient goes on as it is."""
    out = c.tape.empty(x.shape, c.dtype, "attention_gate")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (x,), (), lambda tape, grads, saved: [grads[0]])
    return out


def _gated(c: Context, x: Tensor, gate: Tensor) -> Tensor:
    """`x * sigmoid(gate)` in fp32, compiled (`_apply_output_gate`): keeps both, of which the gate may be a view."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grads = [c.new(rows, columns, f"grad_attention_{name}") for name in ("out", "gate")]
        c.elementwise(grads[0], 5, operators=1)
        return [*grads]

    out = c.new(rows, columns, "attention_gated")
    c.elementwise(out, 3, operators=1)
    c.node(out, (x, gate), (x, gate), back)
    return out


def _head_norm(c: Context, path: str, x: Tensor, head_dim: int) -> Tensor:
    """TE RMSNorm or LayerNorm over each head: keeps a contiguous copy of its input (a view of qkv), statistics by head.

    `head_dim`: elements that it takes together, in OLMoE those of all heads.

    The query of grouped heads is copied by its reshape, other views by the norm (TE 2.18 `ops/basic/rmsnorm.py` and
    `layer_norm.py`, `input_.contiguous()`). LayerNorm has a bias, and keeps the mean beside rsigma.
    """
    weight, bias, (rows, columns) = c.param(f"{path}.weight"), c.run.params.get(f"{path}.bias"), x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_head_norm")
        c.elementwise(grad, 4, Kernel.NORM)
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    whole = _whole(c, x, path)
    measures = [c.new(rows, columns // head_dim, f"{path}.{name}", "fp32")
                for name in (("mu", "rsigma") if bias else ("rsigma",))]
    out = c.new(rows, columns, f"{path}.out")
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x, weight, bias), (whole, *measures), back)
    return out


def turning_passes(*, is_backward: bool, interleaved: bool = False) -> tuple[int, int]:
    """(reads and writes of the whole tensor, torch operators) that an unfused rotation takes.

    Core 0.16.1 `rope_utils.py`. Forward: product with cos, halves negated and put together, product with sin, sum, a
    copy beside nothing. Backward: two products, halves, two sums of what three users of the tensor send back, zeros for
    the part that is not rotated. `interleaved` (MLA): even and odd columns are put together before; backward spreads
    both over zeros. Forward makes cos and sin of all positions anew, each by three small operators.
    """
    if is_backward:
        return 14 + 7 * interleaved, 8 + 5 * interleaved
    return 12 + 2 * interleaved, 6 + 6 + interleaved


def _moved(c: Context, x: Tensor, name: str, block: Attention) -> Tensor:
    """A copy, or rotation, of a part of qkv. A copy keeps nothing, nor does TE's fused rotation.

    Operator by operator cosines and sines of the positions [local sequence, rotated] are made for each of query and
    key, in the compute dtype, and kept by the products with them (core 0.16.1 `rope_utils.py`,
    _apply_rotary_pos_emb_bshd). TE's fused rotation knows no factor of YaRN's (core 0.16.1 `rope_utils.py`,
    apply_rotary_pos_emb: mscale), which GPT-OSS has (Bridge 0.3.1
    `models/gpt_oss/gpt_oss_provider.py`, yarn_rotary_scaling_factor).
    """
    if block.rotary and c.options.reads_images and c.kind.family not in _BY_POSITION:
        return turned_by_token(c, x, name, block.rotated or block.head_dim, block.head_dim)
    rows, columns = x.shape

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        if not rotary:
            return [grads[0]]
        grad = c.new(rows, columns, f"grad_{name}")
        _turned(c, grad, share, fused=fused, is_backward=True)
        return [grad]

    rotary, share = name == "key" or block.rotary, (block.rotated or block.head_dim) / block.head_dim
    fused = not rotary or (c.kind.family != "gpt_oss" and c.options.apply_rope_fusion is not False)
    tables = [] if fused else [c.new(c.tokens // c.run.batch, block.rotated or block.head_dim, f"{name}.{part}")
                               for part in ("cos", "sin")]
    out = c.new(rows, columns, name)
    _turned(c, out, share, fused=fused, is_backward=False)
    c.node(out, (x,), tables, back)
    return out


def _turned(c: Context, x: Tensor, share: float, *, fused: bool, is_backward: bool) -> None:
    """`share`: part of each head that is rotated; the whole head is copied once besides, by the fused kernel too."""
    passes, operators = (2, 0) if fused else turning_passes(is_backward=is_backward)
    moved = round((2 + (passes - 2) * share) * x.nbytes)
    c.tape.compute(Kernel.ELEMENTWISE, x.numel, moved, operators)


def _is_plain(block: Attention) -> bool:
    """Query, key and value are the three parts of each head of one tensor: TE's layout sbh3d, which needs no copies."""
    return block.num_heads == block.num_kv_heads and not (block.rotary or block.qk_norm or block.gated)


def core(c: Context, num_heads: int, q: Tensor, k: Tensor, v: Tensor, columns: int = 0, *,
         plain: bool = False, dropout: bool = False, window: int = 0) -> Tensor:
    """Causal attention of `q`, `k` and `v`, each [tokens, this rank's heads * d].

    Returns [tokens, `columns`]. It is recomputed in backward where recompute_modules names core_attn. `num_heads`:
    heads of all tp ranks; `columns`: width of the output, 0 for that of q. `plain`: q, k and v are read in place, as
    parts of one tensor. `dropout` costs a fused kernel no memory: it keeps the state of the random numbers. `window`:
    tokens that a token sees, 0 for all.
    """
    if window and (c.has_unfused_attention or attends_by_tensor(c)):
        raise NotYet(Problem("framework_options.attention_backend", "not yet: attention within a window in unfused "
                             "attention or in 8 bits"))

    def run() -> Tensor:
        if c.has_unfused_attention:
            parts = (q, k, v) if plain else _of_one_layout(c, q, k, v)
            return unfused_core(c, num_heads, parts, columns or q.shape[1], dropout=dropout, plain=plain)
        if attends_by_tensor(c):
            return core_8_bits(c, num_heads, (q, k, v), columns or q.shape[1], plain=plain)
        return _core(c, num_heads, (q, k, v), columns or q.shape[1], plain=plain, pairs=_pairs(c, window))

    if plain and c.tape.away is not None:
        c.tape.away.take_whole((q, k, v))
    return c.region(run) if c.recomputes("core_attn") else run()


def _core(c: Context, num_heads: int, parts: tuple[Tensor, Tensor, Tensor], columns: int, *, plain: bool,
          pairs: int = 0, sinks: Param | None = None, bias: bool = False) -> Tensor:
    """Keeps q, k, v, the output, the softmax statistics and sinks (fp32, one a head). `pairs`: seen, 0 for all.

    `bias`: of the scores; all layers keep one, and each makes its gradient (TE d0067d0d csrc/extensions/attention.cpp).
    """
    q, k, v = parts
    rows, heads = q.shape[0], num_heads // c.run.tp
    sizes = q.shape[1] // heads, columns // heads, rows * heads
    flash = c.has_flash_attention and sinks is None and not bias
    flops = (pairs or c.run.pairs) * (q.shape[1] + columns)  # two products of 2 FLOPs, half of them masked
    shapes = [t.shape for t in (q, k, v)]
    moved = q.nbytes, k.nbytes, v.nbytes

    def back(tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        grads = _grads_of_parts(c, rows, shapes, plain=plain)
        # Estimate: flash backward accumulates dq in fp32 and needs one sum a row and head.
        around = 128 * c.run.sequences * flash  # [Note: packing]
        of_bias = [c.new(rows, c.run.seq, "grad_attention_bias")] if bias else []
        work = tape.empty((rows + around, shapes[0][1] + heads), "fp32", "attention_workspace")
        send_gradient(c, c.size * rows * columns)
        kernel = _in_8_bits(c, rows, (columns,))
        differentiate(c, Work(kernel, flops * 5 // 2, shape_of_heads(*sizes, backward=True), moved,
                              others=2 * sum(t.nbytes for t in saved)))
        of_bias.clear()
        del work
        return [*grads, grad_of_sinks(c, sinks) if sinks else None]

    named = ((q, "query"), (k, "key"), (v, "value"))
    made = [t if plain else _whole(c, t, n) for t, n in named]
    own = () if sinks is None else (own_sinks(c, sinks),)
    out = c.new(rows, columns, "attention_out")
    stats = c.new(rows, heads, "softmax_stats", "fp32")
    kernel = _in_8_bits(c, rows, [s[1] for s in shapes])
    attend(c, Work(kernel, flops, shape_of_heads(*sizes), moved, out.nbytes, stats.nbytes))
    c.node(out, (q, k, v, sinks), (*made, out, stats, *own), back)
    return _handed_on(c, out) if (flash and c.run.batch > 1) or c.swaps_heads else out


def _grads_of_parts(c: Context, rows: int, shapes: Sequence[tuple[int, ...]], *, plain: bool) -> list[Tensor]:
    """Gradients of query, key and value: parts of one tensor if they are `plain`."""
    if plain:
        whole = c.new(rows, sum(s[1] for s in shapes), "grad_qkv")
        return [Tensor(whole.storage, s, c.dtype) for s in shapes]
    names = ("query", "key", "value")
    return [c.tape.empty(s, c.dtype, f"grad_{n}") for s, n in zip(shapes, names, strict=True)]


def _in_8_bits(c: Context, rows: int, columns: Sequence[int]) -> Kernel:
    """The kernel of attention; in fp8 each of its inputs (backward: the gradient) is cast along both sides before.

    TransformerEngine 2.18 `dot_product_attention/utils.py`, mxfp8_quantize_only.
    """
    if not c.attends_in_fp8:
        return Kernel.ATTENTION
    assert c.scaling is not None
    copies = sum(c.scaling.copy_bytes(rows, wide, along_columns=along) for wide in columns for along in (False, True))
    c.tape.compute(Kernel.ELEMENTWISE, rows * sum(columns), c.size * rows * sum(columns) + copies, len(columns))
    return Kernel.FP8_ATTENTION


def _handed_on(c: Context, x: Tensor) -> Tensor:
    """Attention keeps its output as it made it, what goes on is a copy.

    flash-attn works sequence by sequence (`backends.py`, FlashAttention); with cp_comm_type a2a each rank has all
    positions of some heads, and a second all-to-all gives positions back (`context_parallel.py`,
    AttnFuncWithCPAndQKVOA2A saves out_part).
    """
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_attention_out")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    out = c.new(rows, columns, "attention_handed_on")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (x,), (), back)
    return out


def _whole(c: Context, x: Tensor, name: str) -> Tensor:
    """The tensor itself if it owns its storage, else a contiguous copy."""
    if x.storage is not None and x.storage.num_bytes == x.nbytes:
        return x
    out = c.tape.empty(x.shape, c.dtype, f"{name}_contiguous")
    c.elementwise(out, 2, Kernel.COPY)
    return out


def _of_one_layout(c: Context, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of what does not own its storage, in TransformerEngine alone.

    TE 2.18 `dot_product_attention/utils.py`, get_qkv_layout, runs for every backend: parts whose strides differ are
    made contiguous. Keys and values of a group are repeated behind it, so that what it copies is not kept.
    """
    if c.options.core_attention or k.shape[1] < q.shape[1]:
        return q, k, v
    return _contiguous(c, q, "query"), _contiguous(c, k, "key"), _contiguous(c, v, "value")


def _contiguous(c: Context, x: Tensor, name: str) -> Tensor:
    """The tensor itself, or a copy that autograd knows, whose gradient is handed on as it is."""
    whole = _whole(c, x, name)
    if whole is not x:
        c.node(whole, (x,), (), lambda tape, grads, saved: [grads[0]])
    return whole


def mlp(c: Context, block: Mlp, x: Tensor, *, behind: bool = False) -> Tensor:
    """Output of a dense MLP for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included, and the one `behind` it; the caller adds the residual. Local: after sequence
    parallelism.
    """
    producer: Producer = "activation" if c.options.fuses_dense_mlp else ""

    def run() -> Tensor:
        inner = norm_linear(c, "mlp.linear_fc1", x, producer=producer)
        inner = act(c, inner, "mlp.activation", gated=block.gated, bias=c.run.params.get("mlp.linear_fc1.bias"))
        return row(c, "mlp.linear_fc2", inner, producer=producer, behind=behind)

    return c.region(run) if c.recomputes("mlp") else run()
