"""Description of one tensor of the model, before a framework splits it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["TensorSpec", "linear_weight"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One parameter or buffer of a layer, before a framework splits it.

    `name` is its path inside the layer, as the implementation spells it (`mixer.in_proj.weight`). `dims` names each
    dimension of `shape`; frameworks split by these names or by position. `component`: group that reports count it in,
    such as routed_experts. `module`: kind of module that has it: linear, grouped (3-D experts or grouped GEMM), norm,
    embedding, conv, router, bias, adapter, factors (a buffer in the parameters' dtype), other. `copies`: separate
    tensors of this shape (one weight an expert). `tied`: the storage is another layer's; the graph sets it from its
    edges, an implementation never does. `stored`: a
    dtype that the implementation insists on ("" follows the scenario). `rests`: of a vision tower that is given no
    images; it lies beside the embedding, whose step never reads it. `frozen`: of what rests, which has no gradient
    anyway, by `training.frozen`.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    component: str
    module: str = "other"
    stored: str = ""
    is_buffer: bool = False
    trainable: bool = True
    copies: int = 1
    tied: bool = False
    rests: bool = False
    frozen: bool = False

    def __post_init__(self) -> None:
        assert len(self.dims) == len(self.shape), f"{self.name}: {len(self.shape)} dimensions, {len(self.dims)} names"

    @property
    def numel(self) -> int:
        """Number of elements of one copy."""
        return math.prod(self.shape)

    @property
    def is_owned(self) -> bool:
        """True for a parameter (no buffer) whose storage is not another layer's."""
        return not self.is_buffer and not self.tied

    @property
    def path(self) -> str:
        """Path of the module that has the tensor: `mixer.in_proj` for `mixer.in_proj.weight`.

        "" for a tensor that the layer itself has.
        """
        return self.name.rpartition(".")[0]


def linear_weight(name: str, out: tuple[int, str], into: tuple[int, str], component: str) -> TensorSpec:
    """Weight [out, into] of the linear `name`; `out`, `into`: length and name of a dimension."""
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")
