"""Multi-head latent attention in torchtitan 0.2.2 (`models/deepseek_v3/model/model.py`), on eager PyTorch 2.13.

Queries and the key that all heads share are turned as in Llama 3; what the projections made stays as long as `forward`
has views of it.
"""

from __future__ import annotations

from simcore.models.blocks import LatentAttention
from simcore.operators.shared import aten
from simcore.operators.shared.ring_attention import ring_attention
from simcore.operators.torchtitan.attention import linear, rotary_entries
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["latent_attention"]


def latent_attention(tape: Tape, run: LayerWorkload, block: LatentAttention, x: Tensor) -> Tensor:
    """Output of multi-head latent attention (`Attention.forward`) for `x` [b, s, hidden], in x's shape."""
    heads, batch = block.num_heads, (run.batch, run.seq)
    q = _query(tape, run, block, x).view(*batch, heads, block.nope + block.rope)
    q_nope, q_pe = aten.split(tape, q, (block.nope, block.rope))
    q_pe = _rotated(tape, run, q_pe, copy_grad=run.cp > 1)
    q = aten.cat(tape, q_nope, q_pe)
    kv, k_pe = aten.split(tape, linear(tape, run, "attention.wkv_a", x), (block.kv_rank, block.rope))
    k_pe = _rotated(tape, run, k_pe.view(*batch, 1, block.rope))
    kv = linear(tape, run, "attention.wkv_b", aten.rms_norm(tape, kv, run.params["attention.kv_norm.weight"],
                                                            "kv_norm"))
    k_nope, v = aten.split(tape, kv.view(*batch, heads, block.nope + block.value), (block.nope, block.value))
    k = aten.cat(tape, k_nope, _shared(tape, k_pe, heads))
    mixed = ring_attention(tape, run, q, k, v) if run.cp > 1 else aten.scaled_dot_product_attention(tape, q, k, v)
    return linear(tape, run, "attention.wo", mixed.view(*batch, block.out_size))


def _query(tape: Tape, run: LayerWorkload, block: LatentAttention, x: Tensor) -> Tensor:
    if not block.q_rank:
        return linear(tape, run, "attention.wq", x)
    down = linear(tape, run, "attention.wq_a", x)
    return linear(tape, run, "attention.wq_b", aten.rms_norm(tape, down, run.params["attention.q_norm.weight"],
                                                             "q_norm"))


def _rotated(tape: Tape, run: LayerWorkload, x: Tensor, *, copy_grad: bool = False) -> Tensor:
    """`apply_rotary_emb`: complex numbers in fp32; everything lives until it returns."""
    wide = aten.cast(tape, x, "fp32")
    table = rotary_entries(tape, run, x.shape[-1])
    out = aten.rotate(tape, wide, table, copy_grad=copy_grad)
    return aten.cast(tape, out, x.dtype)


def _shared(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """One key for all heads, a view; gradients are added over heads."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_shared_key", heads * x_bytes)])
    x_bytes = x.nbytes
    return Tensor(x.storage, (*shape[:2], heads, shape[3]), dtype, node)
