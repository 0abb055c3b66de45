"""PyTorch's eager operators: what each allocates, what its autograd node saves, and what its backward allocates.

Input: a `Tape` and `Tensor`s. Output: `Tensor`s; as a side effect rows on the tape. Start: `kernels.new`.

Every function follows the formula of torch 2.13 (`tools/autograd/derivatives.yaml`) and the order in which the
generated code evaluates it: gradients of later arguments first, then of earlier ones, then broadcast gradients are
summed to the argument's shape. A node saves an argument only if another argument's gradient needs it.

A function's locals die when it returns, as PyTorch's do, so the order of its lines is the order of its allocations.
Modules go by subject (`rotation`: what upstreams write of operators); all functions are names of this package, so that
code reads like upstream: `aten.linear(...)`.
"""

from simcore.operators.shared.aten.attention import (
    WIDEST,
    expand_heads,
    flash_attention,
    flash_attention_with_sinks,
    masked_attention,
    repeat_heads,
    rotate,
    scaled_dot_product_attention,
    to_heads,
    wide_attention,
)
from simcore.operators.shared.aten.elementwise import (
    add,
    add_,
    add_scalar,
    cast,
    clamp,
    div,
    div_,
    dropout,
    exp,
    gelu,
    masked_fill,
    mul,
    mul_,
    mul_rows,
    mul_scalar,
    neg,
    relu,
    rsqrt,
    select,
    sigmoid,
    silu,
    softplus,
    sqrt,
    square,
    sub,
    tanh,
)
from simcore.operators.shared.aten.flex import block_masks, flex_attention, less_sinks
from simcore.operators.shared.aten.indexing import (
    all_to_all,
    cat,
    chunk,
    contiguous,
    embedding,
    gather,
    index,
    index_add,
    slice_half,
    slice_last,
    sort,
    split,
    swap_dims,
    topk,
)
from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, needs_grad, new
from simcore.operators.shared.aten.loss import cross_entropy
from simcore.operators.shared.aten.matmul import (
    baddbmm,
    bmm,
    grouped_mm,
    linear,
    permuted,
    product,
    reshaped,
    shapes_of_group,
    strided,
)
from simcore.operators.shared.aten.normalization import layer_norm, rms_norm
from simcore.operators.shared.aten.reduction import log_softmax, mean, softmax, sum_last, sum_of
from simcore.operators.shared.aten.rotation import rotate_half, rotate_halves

__all__ = ["Grads", "Operand", "Saved", "WIDEST", "add", "add_", "add_scalar", "all_to_all", "baddbmm", "block_masks",
           "bmm", "cast", "cat", "chunk", "clamp", "contiguous", "cross_entropy", "div", "div_", "dropout", "embedding",
           "exp", "expand_heads", "flash_attention", "flash_attention_with_sinks", "flex_attention", "gather", "gelu",
           "grouped_mm", "index", "index_add", "layer_norm", "less_sinks", "linear", "log_softmax", "masked_attention",
           "masked_fill", "mean", "mul", "mul_", "mul_rows", "mul_scalar", "needs_grad", "neg", "new", "permuted",
           "product", "relu", "repeat_heads", "reshaped", "rms_norm", "rotate", "rotate_half", "rotate_halves", "rsqrt",
           "scaled_dot_product_attention",
           "select", "shapes_of_group", "sigmoid", "silu", "slice_half", "slice_last", "softmax", "softplus", "sort",
           "split", "sqrt", "square", "strided", "sub", "sum_last", "sum_of", "swap_dims", "tanh", "to_heads", "topk",
           "wide_attention"]
