"""Attention in torchtitan 0.2.2: Llama 3 and 4 rotate complex numbers in fp32, Qwen3 norms heads and rotates halves.

Some layers of Llama 4 do not rotate (its flavors with `irope`).

Up to 0.2.1 (commit ff0829c10 of 27 January 2026) keys and values were repeated for every head before attention
(`repeat_kv`): under context parallelism the ring gathers and sends these copies.

Both turn queries and keys by a table that is a buffer of the model. Qwen3's is fp32 and handed to every layer, where
FSDP2 casts it like any other floating input (`MixedPrecisionPolicy.cast_forward_inputs`): each layer has its own copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.models.blocks import Attention, LatentAttention, LayerKind
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_sequence, scatter_sequence
from simcore.operators.shared.ring_attention import ring_attention
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["attention", "linear", "rotary_buffer", "rotary_entries", "rotary_table", "rotated_halves"]


def rotary_buffer(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{name: bytes} of the rotary table, a buffer of the model: `freqs_cis`, or `rope_cache`.

    0 bytes without attention. For each position it has a complex64 a pair of dimensions, or in Qwen3 and GPT-OSS fp32
    cosine and sine of each dimension.
    """
    blocks = [(run, branch.block) for kind, run in runs for branch in kind.branches
              if isinstance(branch.block, Attention | LatentAttention)]
    halves = any(_turns_halves(block) for _, block in blocks)
    size = max((run.seq * run.cp * _turned_size(block) * (8 if halves else 4) for run, block in blocks), default=0)
    return {"rope_cache" if halves else "freqs_cis": size}


def _turns_halves(block: object) -> bool:
    """True for Qwen3 and GPT-OSS, whose table is in fp32."""
    return isinstance(block, Attention) and (block.qk_norm or block.sinks)


def _turned_size(block: Attention | LatentAttention) -> int:
    """Number of dimensions of a head that are rotated."""
    return block.head_dim if isinstance(block, Attention) else block.rope


def rotary_table(tape: Tape, run: LayerWorkload, kind: LayerKind) -> Tensor | None:
    """Copy of the rotary table of Qwen3 or GPT-OSS [s * cp, 2 d] for this layer, in the compute dtype.

    None for other models. In fp32 it is the model's buffer itself.
    """
    block = kind.branches[0].block
    if not _turns_halves(block):
        return None
    assert isinstance(block, Attention)
    whole = Tensor(None, (run.seq * run.cp, 2 * block.head_dim), "fp32")
    return aten.cast(tape, whole, run.compute)


def linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of the linear without bias that has this name in the layer, for `x` [..., k]."""
    return aten.linear(tape, x, run.params[f"{name}.weight"], name.rpartition(".")[2])


def attention(tape: Tape, run: LayerWorkload, block: Attention, x: Tensor, table: Tensor | None) -> Tensor:
    """Output of attention (`Attention.forward`) for `x` [b, s / tp, hidden], in x's shape.

    `table`: Qwen3's rotary table, None in Llama.
    """
    dim = block.head_dim
    x = gather_sequence(tape, run, x, "attention_in")
    q, k, v = (linear(tape, run, f"attention.{name}", x) for name in ("wq", "wk", "wv"))
    q, k = (y.view(*y.shape[:2], y.shape[2] // dim, dim) for y in (q, k))
    repeats = q.shape[2] // k.shape[2] if TorchtitanOptions.of(run.options).repeat_kv else 1
    v = aten.to_heads(tape, v, dim, copy_grad=run.cp > 1 and repeats == 1)
    if not block.rotary:
        q, k = (aten.to_heads(tape, y.view(*y.shape[:2], y.shape[2] * dim), dim, copy_grad=run.cp > 1) for y in (q, k))
    elif table is None:
        q, k = _rotated_pairs(tape, run, q, k, is_repeated=repeats > 1)
    else:
        q = aten.rms_norm(tape, q, run.params["attention.q_norm.weight"], "q_norm")
        k = aten.rms_norm(tape, k, run.params["attention.k_norm.weight"], "k_norm")
        q, k = rotated_halves(tape, run, q, k, table)
    k, v = (aten.repeat_heads(tape, x, repeats) for x in (k, v))
    mixed = ring_attention(tape, run, q, k, v) if run.cp > 1 else aten.scaled_dot_product_attention(
        tape, q, k, v, in_region=TorchtitanOptions.of(run.options).flex)
    out = linear(tape, run, "attention.wo", mixed.view(*mixed.shape[:2], mixed.shape[2] * dim))
    return scatter_sequence(tape, run, out, "attention_out")  # the linear's hook: its input is still there


def _rotated_pairs(tape: Tape, run: LayerWorkload, q: Tensor, k: Tensor, *,
                   is_repeated: bool) -> tuple[Tensor, Tensor]:
    """Llama 3's `apply_rotary_emb`: everything lives until it returns.

    A ring puts gradients out in the order of heads; those of repeated keys are added up before they come here.
    """
    wide_q, wide_k = aten.cast(tape, q, "fp32"), aten.cast(tape, k, "fp32")
    table = rotary_entries(tape, run, q.shape[-1])
    out_q, out_k = (aten.rotate(tape, x, table, copy_grad=run.cp > 1 and not is_summed)
                    for x, is_summed in ((wide_q, False), (wide_k, is_repeated)))
    return aten.cast(tape, out_q, q.dtype), aten.cast(tape, out_k, k.dtype)


def rotary_entries(tape: Tape, run: LayerWorkload, dim: int) -> Tensor:
    """Rotary table of this rank's tokens, fp32 [s, dim / 2, 2].

    Under context parallelism a copy [b, s, dim / 2, 2], picked for every sequence by `positions`. `dim`: rotated
    dimensions of a head.
    """
    if run.cp == 1:
        return Tensor(None, (run.seq, dim // 2, 2), "fp32")
    return aten.new(tape, (run.batch, run.seq, dim // 2, 2), "fp32", "freqs_cis", kernel=Kernel.PERMUTE)


def rotated_halves(tape: Tape, run: LayerWorkload, q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned as in Qwen3 and GPT-OSS, new tensors in their shapes.

    Cosine and sine are the halves of the table, or of the rows picked by `positions`, views of it.
    """
    dim, rows = q.shape[-1], (1, table.shape[0])
    if run.cp > 1:
        rows = run.batch, run.seq
        table = aten.new(tape, (*rows, 2 * dim), table.dtype, "rope_cache", kernel=Kernel.PERMUTE)
    cos, sin = (Tensor(table.storage, (*rows, 1, dim), table.dtype) for _ in range(2))
    return aten.rotate_halves(tape, q, cos, sin), aten.rotate_halves(tape, k, cos, sin)


