"""End of the tower, and the place of its tokens in the embedded sequence (`Qwen3VLModel.forward`).

The embedding puts out whole sequences, which are cloned; image tokens are written over them in place, and the sequence
is cut over tp last. Its part is a view: the whole lives until the first layer's backward is over (model.py:867,
whose `contiguous` copies nothing; core's clone_scatter_output_in_embedding is not asked).
Megatron-Bridge 067f987d `models/qwen_vl/modelling_qwen3_vl/model.py`.

[Note: order of embedding and tower]
Upstream runs the tower before it embeds tokens, and differentiates the embedding first. Here the embedding is the first
layer, so its output lives while the tower runs, and its gradient while the tower is differentiated: a tensor of
tokens x hidden more, at moments when the decoder's layers hold nothing of the microbatch.
"""

from __future__ import annotations

from simcore.models.placed_blocks import PlacedMerger
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import reordered
from simcore.operators.megatron.ops.parts import all_gather
from simcore.operators.megatron.vision.tower import squares, tower_context
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["cut", "of_this_rank", "put", "with_image_tokens"]


def with_image_tokens(c: Context, block: PlacedMerger, x: Tensor, embedded: Tensor) -> Tensor:
    """The sequence [local tokens, hidden] with image tokens.

    Of `x` [patches, width] and `embedded` [all tokens, hidden]. Local: after context and sequence parallelism; all:
    before both.
    """
    found = squares(tower_context(c, block.patches), block, x)
    tokens = c.tape.empty(found.shape, c.dtype, "vision_embeds")  # `torch.cat` of the images' tokens
    c.elementwise(tokens, 2, Kernel.COPY, operators=1)
    c.node(tokens, (found,), (), lambda tape, grads, saved: [grads[0]])
    del found
    cloned = c.tape.empty(embedded.shape, c.dtype, "combined_embeddings")
    c.elementwise(cloned, 2, Kernel.COPY, operators=1)
    c.node(cloned, (embedded,), (), lambda tape, grads, saved: [grads[0]])
    whole = cloned if c.run.batch == 1 else reordered(c, cloned, "combined_embeddings", "grad_combined_embeddings")
    del cloned
    filled = put(c, whole, tokens, views=c.run.batch == 1)
    del whole
    out = filled if c.run.batch == 1 else reordered(c, filled, "combined_embeddings", "grad_combined_embeddings")
    del filled
    out = of_this_rank(c, out)
    return cut(c, out)


def put(c: Context, whole: Tensor, tokens: Tensor, *, views: bool) -> Tensor:
    """`whole[mask] = tokens`, in place: `whole` [rows, hidden] itself, with a node.

    `views`: it is a view that is written (torch 2.13 `autograd/custom_function.h`, CopySlices), as Qwen's of one
    sequence: backward copies the gradient, and the part that was written once more. Values get the gradient's rows.
    """
    shape, given = whole.shape, tokens.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        result = c.tape.empty(shape, c.dtype, "grad_combined_embeddings")
        part = [c.tape.empty(shape, c.dtype, "grad_slice") for _ in range(2 * views)]
        values = c.tape.empty(given, c.dtype, "grad_vision_embeds")
        c.elementwise(result, 2 + 6 * views, Kernel.PERMUTE, operators=2 + 3 * views)
        part.clear()
        return [result, values]

    out = Tensor(whole.storage, whole.shape, whole.dtype)
    c.elementwise(tokens, 2, Kernel.PERMUTE, operators=2)
    c.node(out, (whole, tokens), (), back)
    return out


def of_this_rank(c: Context, x: Tensor) -> Tensor:
    """The rank's two chunks of the sequence, a copy (`split_data_cp_rank`); backward puts them into zeros."""
    if c.run.cp == 1:
        return x
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, "grad_combined_embeddings")
        c.elementwise(grad, 2, Kernel.PERMUTE, operators=2)
        return [grad]

    out = c.new(c.tokens, columns, "combined_embeddings")
    c.elementwise(out, 2, Kernel.PERMUTE, operators=1)
    c.node(out, (x,), (), back)
    return out


def cut(c: Context, x: Tensor) -> Tensor:
    """`scatter_to_sequence_parallel_region`: a part [local tokens, hidden] that is a view, so that the whole stays."""
    if c.local == c.tokens:
        return x
    columns = x.shape[1]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [all_gather(c, grads[0], "grad_embedding")]

    out = c.new(c.local, columns, "hidden_states")
    others = c.new(c.tokens - c.local, columns, "combined_embeddings.others")
    c.node(out, (x,), (others,), back)
    return out
