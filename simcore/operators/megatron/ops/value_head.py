"""A head of values and their loss: NeMo RL's value models over Megatron-Core, a number for each token.

NeMo RL 7ea279ab `models/value/workers/megatron_value_worker.py`, Megatron-Bridge 067f987d `models/common/heads.py`
LinearForLastLayer: a `torch.nn.Linear` from the hidden size to 1 without a bias, whole on every rank, whose output is
cast to fp32 and, under sequence parallelism, gathered over tp. Its weight is no embedding's. The loss (`algorithms/
loss/loss_functions.py` MseValueLossFn) clips values around the old ones and takes the larger of both squared
differences from the returns, in fp32.
"""

from __future__ import annotations

from typing import Final

from simcore.models.tensor import TensorSpec
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["VALUE_HEADS", "value_head", "value_loss", "value_weight"]

VALUE_HEADS: Final = ("deepseek_v3", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families with a value head."""
_KEPT: Final = 7
"""Numbers of a token that the loss keeps: bounds, values, differences and squares of both kinds."""


def value_weight(hidden: int) -> tuple[TensorSpec, ...]:
    """The head's weight, [1, hidden], which tp does not split."""
    return (TensorSpec("output_layer.weight", (1, hidden), ("values", "hidden"), "lm_head", "linear"),)


def value_head(c: Context, hidden: int, x: Tensor) -> Tensor:
    """Values [tokens, 1] in fp32 of the hidden state `x` [local tokens, hidden]."""
    weight, is_split = c.param("output_layer.weight"), c.local != c.tokens

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        narrow = c.new(c.local, 1, "grad_values")
        grads.clear()
        grad = c.new(c.local, hidden, "grad_final_norm")
        c.gemm(c.local, hidden, 1)
        made = c.wgrad(weight, c.local, opens=False)
        del narrow
        return [grad, made]

    x = c.after_gradients(x)
    narrow = c.new(c.local, 1, "values")
    c.gemm(c.local, 1, hidden)
    out = c.new(c.tokens, 1, "hidden_states", "fp32")
    if is_split:
        c.tape.collective("all_gather", "tp", out.nbytes, "fp32")
    del narrow
    c.node(out, (x, weight), (x,), back)
    return out


def value_loss(c: Context, values: Tensor) -> Tensor:
    """Losses [tokens, 1] in fp32 of `values` [tokens, 1]."""
    rows = values.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.new(rows, 2, "grad_squares", "fp32")
        grad = c.new(rows, 1, "grad_logits", "fp32")
        c.tape.compute(Kernel.ELEMENTWISE, 0, wide.nbytes + grad.nbytes, _KEPT)
        del wide
        return [grad]

    kept = c.new(rows, _KEPT, "clipped_values", "fp32")
    out = c.new(rows, 1, "loss", "fp32")
    c.tape.compute(Kernel.ELEMENTWISE, 0, kept.nbytes + out.nbytes, 2 * _KEPT)
    if c.run.cp > 1:
        c.tape.collective("all_gather", "cp", c.run.cp * values.nbytes, "fp32")
    c.node(out, (values,), (kept,), back)
    return out
