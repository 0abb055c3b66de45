"""Multi-head latent attention (MLA) of NeMo Automodel's DeepSeek-V3, which GLM-4.7-Flash uses too.

nemo-automodel 0.7.0 `components/models/deepseek_v3/{layers,rope_utils}.py`, `components/models/common/rope_triton.py`,
`components/attention/utils.py`, `components/models/common/utils.py` (BackendConfig: attention by TE where it is
installed). `_forward_impl` keeps every variable until it returns, so the projections that were split live as long as
the tensors that were put together from them.

[Note: keys that layers choose together]
In GLM-5.2 some layers have no indexer, and take the indices of the last layer below that has one. The model's variable
`topk_indices` holds them until another layer with an indexer has returned, or the model (`models/glm_moe_dsa/model.py`,
GlmMoeDsaModel.forward): the lowest layer here keeps its own until then, which are as large. All blocks are given them,
so that checkpoints keep the indices of the layer below until their backward is over, which is before that layer's own
begins; here those of a stage's last layer too, which Automodel lets go when it has sent them. With pp a stage sends
them on in fp32 beside the hidden state, keeps what it sends and receives as PyTorch's stages do, and casts them back
(GlmMoeDsaForCausalLM.forward, get_pipeline_stage_metas). Tensors of these casts' moments are not counted.

[Note: attention over chosen keys alone]
With `attn: tilelang` (`models/glm_moe_dsa/layers.py`) sequences are packed in a row of tokens. All heads share one key
and value of `kv_rank + rope` columns: a part of the projection up from the rank is multiplied into the query, the other
into what attention makes of the values. Both are slices of one weight, whose gradients are each as large as the whole.
Ranks that share a row hold a part of its queries each, one behind the other, and gather keys of all: the indexer's,
latent values, rotated keys.

Rotation is one Triton kernel on CUDA that keeps only the frequencies, which are the stem's; 0.7.0 switches TE's fused
one off (BackendConfig.__post_init__), which would keep as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.models.blocks import Indexer, LatentAttention, LayerKind, Mixer
from simcore.operators.automodel.chosen.kernels import as_tensor, of_all_ranks, rows_of, scored_keys, sparse_attention
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm, te_attention
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.shared import aten
from simcore.operators.shared.aten import new
from simcore.operators.shared.indexer import Projections, chosen_keys, number_mask, truth_mask
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Section, Tape, Tensor

__all__ = ["drop_chosen", "latent_attention", "received_keys", "sent_keys"]


def latent_attention(env: Env, x: Tensor, block: LatentAttention, path: str) -> Tensor:
    """Multi-head latent attention (`MLA._forward_impl`) of `x` [batch, sequence, hidden].

    Returns x's shape. `path`: name of the attention module in the layer. The caller adds the residual.
    """
    if env.options.sparse:
        return _absorbed_attention(env, x, block, path)
    tape, (batch, seq, _), heads = env.tape, x.shape, block.num_heads
    named: dict[str, Tensor] = {}
    plain_query, turned_query = _split(tape, _query(env, x, block, path, named), block.nope)
    latent, turned_key = _split(tape, linear(env, x, f"{path}.kv_a_proj_with_mqa"), block.kv_rank)
    latent = norm(env, latent, f"{path}.kv_a_layernorm")
    turned_query = _rotated(tape, turned_query)
    turned_key = _rotated(tape, turned_key.view(batch, seq, 1, block.rope))
    turned = block.indexer is not None and block.indexer.hadamard
    if "indices" in named and not turned:
        named["mask"] = number_mask(tape, named["indices"], x.dtype)
        _return_keys(env, named["indices"], block)
    query = aten.cat(tape, plain_query, turned_query)
    scale = None
    if block.tempered:  # `attn_scale` and what it is made of: variables of the function
        scale = _scale(tape, batch, seq, query.dtype)
        query = aten.mul(tape, query, scale.view(batch, seq, 1, 1), "tempered")
    latent = linear(env, latent, f"{path}.kv_b_proj").view(batch, seq, heads, block.nope + block.value)
    turned_key = _expanded(tape, turned_key, heads)
    plain_key, value = _split(tape, latent, block.nope)
    key = aten.cat(tape, plain_key, turned_key)
    if "mask" in named:
        query, key, value = (aten.contiguous(tape, query, "q"), aten.contiguous(tape, key, "k"),
                             aten.contiguous(tape, value, "v"))
        out = aten.masked_attention(tape, query, key, value, None if turned else named["mask"])
        return linear(env, out.view(batch, seq, block.out_size), f"{path}.o_proj")
    # A view with strides of its own, which TE makes contiguous (TransformerEngine 2.18
    # `dot_product_attention/utils.py`, get_qkv_layout); no other reference holds the copy.
    out = te_attention(env, query, key, aten.contiguous(tape, value, "value_contiguous"))
    return linear(env, out.view(batch, seq, block.out_size), f"{path}.o_proj")


def _query(env: Env, x: Tensor, block: LatentAttention, path: str, named: dict[str, Tensor]) -> Tensor:
    """[b, s, heads, nope + rope], through a rank and a norm if the query is compressed.

    `named`: takes what a module with an indexer names until it returns.
    """
    tape = env.tape
    if not block.q_rank:
        query = linear(env, x, f"{path}.q_proj")
    else:
        low = norm(env, linear(env, x, f"{path}.q_a_proj"), f"{path}.q_a_layernorm")
        if block.indexer is not None:
            named |= {"low": low, "indices": _indices(env, x, low, block, path)}
            if block.indexer.hadamard:
                named["mask"] = truth_mask(tape, named["indices"])
        query = linear(env, low, f"{path}.q_b_proj")
    return query.view(*x.shape[:2], block.num_heads, block.nope + block.rope)


def _indices(env: Env, x: Tensor, low: Tensor, block: LatentAttention, path: str) -> Tensor:
    """Keys that this layer's indexer chooses, or that an earlier one has chosen."""
    assert block.indexer is not None
    if block.indexer.borrows:
        return _borrowed_keys(env.run, block.indexer)
    made = _projections(env, x, low, f"{path}.indexer")
    if env.options.sparse:
        return scored_keys(env.tape, made, block.indexer, block.rope, env.run.cp)
    return chosen_keys(env.tape, made, block.indexer, block.rope)


def _projections(env: Env, x: Tensor, low: Tensor, path: str) -> Projections:
    return Projections(lambda: linear(env, low, f"{path}.wq_b"), lambda: linear(env, x, f"{path}.wk"),
                       lambda: linear(env, x, f"{path}.weights_proj"),
                       (env.param(f"{path}.k_norm.weight"), env.param(f"{path}.k_norm.bias")))


def _scale(tape: Tape, batch: int, seq: int, dtype: str) -> Tensor:
    """A number for the query of each position, 1 within the original context (`_get_llama_4_attn_scale`)."""
    made = aten.new(tape, (batch, seq), "fp32", "scale")
    for _ in range(6):
        made = aten.select(tape, made, made.shape, "fp32", "scale")
    return aten.select(tape, made, made.shape, dtype, "scale")


def _split(tape: Tape, x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """`torch.split` of the last dimension: views of one node; their gradients are concatenated."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [
        new(tape, shape, dtype, "grad_split", num_bytes, Kernel.COPY)])
    return (Tensor(x.storage, (*shape[:-1], first), dtype, node),
            Tensor(x.storage, (*shape[:-1], shape[-1] - first), dtype, node, 1))


def _rotated(tape: Tape, x: Tensor) -> Tensor:
    """`apply_complex_rope` of x [b, s, heads, rope]: a new tensor; the gradient is turned back into another one."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_rotary", num_bytes)])
    out = new(tape, shape, dtype, "rotary", num_bytes)
    out.node = node
    return out


def _expanded(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """The rotated key [b, s, 1, rope] for every head, a view; its gradient is the sum over heads."""
    shape, dtype = x.shape, x.dtype
    wide = (*shape[:2], heads, shape[3])
    node = tape.node((x,), (), lambda tape, grads, saved: [
        new(tape, shape, dtype, "grad_rotary_key", heads * x_bytes)])
    x_bytes = x.nbytes
    return Tensor(x.storage, wide, dtype, node)


# ---- attention over chosen keys alone -----------------------------------------------------------------------------
def _absorbed_attention(env: Env, x: Tensor, block: LatentAttention, path: str) -> Tensor:
    """Output, in the shape of `x` [batch, sequence, hidden], of attention at `path` over its chosen keys."""
    tape, (batch, seq, _), heads = env.tape, x.shape, block.num_heads
    low = norm(env, linear(env, x, f"{path}.q_a_proj"), f"{path}.q_a_layernorm")
    indices = _indices(env, x, low, block, path)
    _return_keys(env, indices, block)
    query = linear(env, low, f"{path}.q_b_proj").view(batch, seq, heads, block.nope + block.rope)
    plain_query, turned_query = _split(tape, query, block.nope)
    latent, turned_key = _split(tape, linear(env, x, f"{path}.kv_a_proj_with_mqa"), block.kv_rank)
    latent = norm(env, latent, f"{path}.kv_a_layernorm")
    turned_query = _rotated(tape, turned_query)
    turned_key = _rotated(tape, turned_key.view(batch, seq, 1, block.rope)).view(batch, seq, block.rope)
    latent = of_all_ranks(tape, env.run.cp, latent)
    turned_key = of_all_ranks(tape, env.run.cp, turned_key)
    weight = _whole_weight(env, f"{path}.kv_b_proj")
    to_key = rows_of(tape, weight, (heads, block.nope, block.kv_rank))
    to_value = rows_of(tape, weight, (heads, block.value, block.kv_rank))
    absorbed = aten.product(tape, plain_query, to_key, (batch, seq, heads, block.kv_rank), block.nope, "absorbed_query")
    query = aten.cat(tape, absorbed, turned_query)
    keys = aten.cat(tape, latent, turned_key)
    out = _values(env, query, keys, indices, to_value, block)
    flat = aten.contiguous(tape, out, "attention").view(batch, seq, block.out_size)
    return linear(env, flat, f"{path}.o_proj")


def _whole_weight(env: Env, path: str) -> Tensor:
    """The weight of the linear layer at `path`, with its adapter's product if it has one (`_peft/lora.py`)."""
    tape, param, pair = env.tape, env.param(f"{path}.weight"), env.adapters(path)
    if pair is None:
        return as_tensor(tape, param)
    low, high = (as_tensor(tape, factor) for factor in pair)
    scaled = aten.mul_scalar(tape, aten.product(tape, high, low, param.shape, low.shape[0], "lora_product"))
    return aten.add(tape, scaled, param, "effective_weight")


def _values(env: Env, q: Tensor, kv: Tensor, indices: Tensor, to_value: Tensor, block: LatentAttention) -> Tensor:
    """`tilelang_sparse_attention`: [b, s, heads, value]."""
    out, _sums = sparse_attention(env.tape, q, kv, indices, block.kv_rank)
    return aten.product(env.tape, out, to_value, (*q.shape[:3], block.value), block.kv_rank, "attention_values")


# ---- keys that layers choose together ------------------------------------------------------------------------------
def _borrowed_keys(run: LayerWorkload, index: Indexer) -> Tensor:
    """Indices that an earlier layer has chosen, and that the model holds."""
    return Tensor(None, *_choice(run, index))


def _return_keys(env: Env, indices: Tensor, block: LatentAttention) -> None:
    """Keeps what a block returns beside its output: until it has returned, or for layers above that take it."""
    assert block.indexer is not None
    lends = block.indexer.shared and env.tape.phase != "recompute"
    (env.lent if lends else env.held).append(indices)


def drop_chosen(env: Env, stem: list[Tensor]) -> tuple[Section, Section]:
    """Sections behind a layer's forward: what its caller drops now, and what the model drops when it returns.

    Indices that checkpoints keep are freed behind both, before the layer's backward. `stem`: what else the model drops.
    """
    lent, env.lent = env.lent, []
    waits = env.run.checkpoint == "full" and not env.run.no_grad
    if not (waits or env.run.first):
        lent.clear()
    dropped = env.tape.cut()
    stem.clear()
    if not waits:
        lent.clear()
    return dropped, env.tape.cut()


def received_keys(run: LayerWorkload, block: Mixer) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of indices that a stage makes of those it has received, which checkpoints keep."""
    index = _shared(block)
    return [("chosen_keys", *_choice(run, index))] if index is not None and run.checkpoint == "full" else []


def sent_keys(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> int:
    """Bytes of indices, in fp32, that a stage sends on beside the hidden state."""
    found = [(run, index) for kind, run in runs for branch in kind.branches if (index := _shared(branch.block))]
    return 4 * math.prod(_choice(*found[0])[0]) if found else 0


def _shared(block: Mixer) -> Indexer | None:
    index = block.indexer if isinstance(block, LatentAttention) else None
    return index if index is not None and index.shared else None


def _choice(run: LayerWorkload, index: Indexer) -> tuple[tuple[int, int, int], str]:
    """Shape and dtype of indices: kernels that read them alone take all `top_k`, however short a sequence is."""
    if AutomodelOptions.of(run.options).sparse:
        return (run.batch, run.seq, index.top_k), "int32"
    return (run.batch, run.seq, min(index.top_k, run.seq)), "int64"
