"""Multi-head latent attention (MLA) of NeMo Automodel's DeepSeek-V3, which GLM-4.7-Flash uses too.

nemo-automodel 0.7.0 `components/models/deepseek_v3/{layers,rope_utils}.py`, `components/models/common/rope_triton.py`,
`components/attention/utils.py`, `components/models/common/utils.py` (BackendConfig: attention by TE where it is
installed). `_forward_impl` keeps every variable until it returns, so the projections that were split live as long as
the tensors that were put together from them.

Rotation is one Triton kernel on CUDA that keeps only the frequencies, which are the stem's; 0.7.0 switches TE's fused
one off (BackendConfig.__post_init__), which would keep as much.
"""

from __future__ import annotations

from simcore.models.blocks import LatentAttention
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm, te_attention
from simcore.operators.shared import aten
from simcore.operators.shared.aten import new
from simcore.operators.shared.indexer import Projections, chosen_keys, number_mask, truth_mask
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["latent_attention"]


def latent_attention(env: Env, x: Tensor, block: LatentAttention, path: str) -> Tensor:
    """Multi-head latent attention (`MLA._forward_impl`) of `x` [batch, sequence, hidden].

    Returns x's shape. `path`: name of the attention module in the layer. The caller adds the residual.
    """
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
        env.held.append(named["indices"])  # the block returns them
    query = aten.cat(tape, plain_query, turned_query)
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
            made = _projections(env, x, low, f"{path}.indexer")
            named |= {"low": low, "indices": chosen_keys(tape, made, block.indexer, block.rope)}
            if block.indexer.hadamard:
                named["mask"] = truth_mask(tape, named["indices"])
        query = linear(env, low, f"{path}.q_b_proj")
    return query.view(*x.shape[:2], block.num_heads, block.nope + block.rope)


def _projections(env: Env, x: Tensor, low: Tensor, path: str) -> Projections:
    return Projections(lambda: linear(env, low, f"{path}.wq_b"), lambda: linear(env, x, f"{path}.wk"),
                       lambda: linear(env, x, f"{path}.weights_proj"),
                       (env.param(f"{path}.k_norm.weight"), env.param(f"{path}.k_norm.bias")))


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
