"""Adafactor of transformers 5.23 (`optimization.py`, Adafactor.step), as the Trainer makes it.

[Note: Adafactor's step] `trainer_optimizer.py`, _get_adafactor: no first moment, no relative step, no scale by the
parameter. A loop over tensors: of one in 16 bits the gradient and the parameter are copied to fp32; the update is made
twice, of the squared gradient and of the factors of rows and columns, and negated. Python's variables keep the last
tensor's copies and update until the next tensor's take their names: first the gradient, then the parameter, then the
update. The Trainer's first parameter group has what weight decay is for (`trainer.py`, get_decay_parameter_names),
whatever the decay is; norms and biases follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from simcore.frameworks.common.steps.own_step import Updated

__all__ = ["held", "moved"]

_UNDECAYED: Final = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_FP32: Final = 4


def held(tensors: Sequence[Updated]) -> int:
    """Returns the most bytes that the step holds at a time, in the order of the Trainer's two parameter groups."""
    ordered = sorted(tensors, key=lambda t: t.is_norm or _UNDECAYED.search(t.name.lower()) is not None)
    return max((_held(before, this) for before, this in zip([None, *ordered], ordered, strict=False)), default=0)


@lru_cache(maxsize=4096)
def _held(before: Updated | None, this: Updated) -> int:
    """Most bytes while `this` is updated after `before`.

    Moments, in the order of the code: the fp32 gradient beside the last parameter and update; both copies; the square
    and its sum with epsilon beside them and the last update; the update from its factors; the negated update.
    """
    last_param, last_update = (_copy(before), _bytes(before)) if before else (0, 0)
    own, copied = _bytes(this), _copy(this)
    grad = own if this.grad_size < _FP32 else 0
    copies = grad + copied
    return max(last_param + last_update + grad, last_update + copies + 2 * own, copies + 2 * own + _factors(this))


def _bytes(tensor: Updated) -> int:
    """Bytes of the tensor in fp32."""
    return _FP32 * math.prod(tensor.shape)


def _copy(tensor: Updated) -> int:
    return _bytes(tensor) if tensor.size < _FP32 else 0


def _factors(tensor: Updated) -> int:
    """Reciprocal roots of rows and columns; a vector has none."""
    shape = tensor.shape
    if len(shape) < 2:
        return 0
    return _FP32 * (math.prod(shape[:-1]) + math.prod((*shape[:-2], *shape[-1:])))


def moved(tensor: Updated) -> int:
    """Returns the bytes that kernels of one operation each read and write.

    Of a matrix: norms of the parameter and the update, square, sum, two means, product of the factors, product with the
    gradient, quotient, product with the rate, negation, sum: 21 passes in fp32. A vector's moment takes two products, a
    sum and a root in place of means and factors: 25. Copies of 16 bits to fp32 and back: 6 bytes an element each.
    """
    elements = math.prod(tensor.shape)
    passes = 21 if len(tensor.shape) > 1 else 25
    copies = 6 * (tensor.grad_size < _FP32) + 12 * (tensor.size < _FP32)
    return elements * (passes * _FP32 + copies)
