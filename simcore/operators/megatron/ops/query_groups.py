"""Query, key and value where tp has more ranks than there are query groups: gathered, then cut to a rank's own heads.

Core 0.16.1 `transformer/attention.py:1398`, and main :1851, get_query_key_value_tensors: weights of a group lie side by
side, so that no rank has clean parts. All ranks' columns are gathered (`tensor_parallel/mappings.py`,
_gather_along_last_dim, a copy behind the exchange), of which a rank looks at its group, and there at its share of query
heads and all of the key and the value. Backward fills zeros around each part, and scatters the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.models.blocks import Attention
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["own_heads", "split_columns"]


def own_heads(c: Context, block: Attention, mixed: Tensor) -> list[Tensor]:
    """Views of query, key, value, and of the gate if there is one, of `mixed` [tokens, columns of a rank's linear]."""
    whole = _gathered(c, mixed)
    del mixed
    shares = block.num_heads // block.num_kv_heads * block.head_dim
    widths = [shares, *([shares] if block.gated else ()), block.head_dim, block.head_dim]
    group = _cut(c, whole, sum(widths))
    del whole
    query, *gate, key, value = split_columns(c, group, widths, "grad_qkv.group")
    own = block.q_size // c.run.tp
    return [_cut(c, query, own), key, value, *(_cut(c, part, own) for part in gate)]


def _gathered(c: Context, x: Tensor) -> Tensor:
    rows, columns = x.shape
    wide = c.run.tp * columns

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        by_ranks = c.new(rows, wide, "grad_qkv.by_ranks")
        c.elementwise(by_ranks, 2, Kernel.COPY, operators=1)
        grad = c.new(rows, columns, "grad_qkv.part")
        c.send("reduce_scatter", "tp", by_ranks)
        return [grad]

    parts = c.new(rows, wide, "qkv.by_ranks")
    c.send("all_gather", "tp", parts)
    out = c.new(rows, wide, "qkv.gathered")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), back)
    return out


def _cut(c: Context, x: Tensor, columns: int) -> Tensor:
    """A view of some columns, whose gradient is put into zeros; `x` itself if it has no others."""
    rows, wide = x.shape
    if wide == columns:
        return x

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, wide, "grad_qkv.around")
        c.elementwise(grad, 1 + 2 * columns // wide, Kernel.COPY, operators=2)
        return [grad]

    out = Tensor(x.storage, (rows, columns), x.dtype)
    c.node(out, (x,), (), back)
    return out


def split_columns(c: Context, x: Tensor, widths: Sequence[int], name: str, *, plain: bool = False) -> list[Tensor]:
    """Views of `x` side by side, whose gradients are concatenated (SplitAlongDim) in a tensor `name`.

    `plain`: of gradients that lie side by side already, for which nothing is made.
    """
    rows, wide = x.shape

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        if plain and grads[0] is not None:
            return [Tensor(grads[0].storage, (rows, wide), c.dtype)]
        grad = c.new(rows, wide, name)
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    views = [Tensor(x.storage, (rows, width), x.dtype) for width in widths]
    c.node(views[0], (x,), (), back)
    for place, view in enumerate(views):
        view.node, view.output = views[0].node, place
    return views
