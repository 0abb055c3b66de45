"""Multi-head latent attention in torchtitan 0.2.2 (`models/deepseek_v3/model/model.py`), on eager PyTorch 2.13.

Queries and the key that all heads share are turned as in Llama 3; what the projections made stays as long as `forward`
has views of it.
"""

from __future__ import annotations

from simcore.models.blocks import LatentAttention
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_sequence, scatter_sequence, summed
from simcore.operators.shared.ring_attention import ring_attention
from simcore.operators.torchtitan.attention import linear, rotary_entries
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["latent_attention"]


def latent_attention(tape: Tape, run: LayerWorkload, block: LatentAttention, x: Tensor) -> Tensor:
    """Output of multi-head latent attention (`Attention.forward`) for `x` [b, s / tp, hidden], in x's shape.

    With tensor parallelism each rank has some heads, and the projections down whole: gradients of what they put out are
    summed over tp, but for the key that all heads share, of which each rank keeps its own part.
    """
    x = gather_sequence(tape, run, x, "attention_in")
    heads, batch = block.num_heads // run.tp, (run.batch, run.seq)
    q = _query(tape, run, block, x).view(*batch, heads, block.nope + block.rope)
    q_nope, q_pe = aten.split(tape, q, (block.nope, block.rope))
    q_pe = _rotated(tape, run, q_pe, copy_grad=run.cp > 1)
    q = aten.cat(tape, q_nope, q_pe)
    kv, k_pe = _split(tape, run, linear(tape, run, "attention.wkv_a", x), (block.kv_rank, block.rope))
    k_pe = _rotated(tape, run, k_pe.view(*batch, 1, block.rope))
    kv = _up(tape, run, "kv_norm", "wkv_b", kv)
    k_nope, v = aten.split(tape, kv.view(*batch, heads, block.nope + block.value), (block.nope, block.value))
    k = _joined(tape, run, k_nope, _shared(tape, k_pe, heads))
    mixed = ring_attention(tape, run, q, k, v) if run.cp > 1 else aten.scaled_dot_product_attention(
        tape, q, k, v, in_region=TorchtitanOptions.of(run.options).flex)
    out = linear(tape, run, "attention.wo", mixed.view(*batch, block.out_size // run.tp))
    return scatter_sequence(tape, run, out, "attention_out")


def _split(tape: Tape, run: LayerWorkload, x: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, ...]:
    """Views of both parts of `x`. With tensor parallelism the first one's gradient is whole, the other's a part.

    DTensor divides the first before it joins them.
    """
    if run.tp == 1:
        return aten.split(tape, x, sizes)
    shape, dtype, moved = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        _part = aten.new(tape, (*shape[:-1], sizes[0]), dtype, "grad_part")
        return [aten.new(tape, shape, dtype, "grad_split", moved)]

    node = tape.node((x,), (), backward)
    return tuple(Tensor(x.storage, (*shape[:-1], size), dtype, node, at) for at, size in enumerate(sizes))


def _joined(tape: Tape, run: LayerWorkload, own: Tensor, shared: Tensor) -> Tensor:
    """`cat` of keys; with tensor parallelism DTensor first copies what belongs to this rank's heads."""
    _copy = aten.new(tape, shared.shape, shared.dtype, "shared_key_part", kernel=Kernel.COPY) if run.tp > 1 else None
    return aten.cat(tape, own, shared)


def _query(tape: Tape, run: LayerWorkload, block: LatentAttention, x: Tensor) -> Tensor:
    if not block.q_rank:
        return linear(tape, run, "attention.wq", x)
    return _up(tape, run, "q_norm", "wq_b", linear(tape, run, "attention.wq_a", _as_part(tape, run, x)))


def _as_part(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """View of `x` whose gradient here is whole, and is divided before parts of others are added to it (DTensor)."""
    if run.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        part = aten.new(tape, shape, dtype, "grad_part")
        if grad is not None and part.storage is not None:
            part.storage.held = grad.storage
        return [part]

    return Tensor(x.storage, shape, dtype, tape.node((x,), (), backward))


def _up(tape: Tape, run: LayerWorkload, norm: str, name: str, x: Tensor) -> Tensor:
    whole = (lambda tape, grad: summed(tape, grad, f"grad_{norm}")) if run.tp > 1 else None
    normed = aten.rms_norm(tape, x, run.params[f"attention.{norm}.weight"], norm, arriving=whole)
    return linear(tape, run, f"attention.{name}", normed)


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
