"""Description of one tensor of the model, before a framework splits it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One parameter or buffer of a layer.

    `name` is its path inside the layer, as the implementation spells it (`mixer.in_proj.weight`).
    `dims` names each dimension of `shape`; frameworks split by these names or by position.
    `module` says what kind of module holds it: linear, grouped (3-D experts or grouped GEMM), norm, embedding, conv,
    router, bias, other. Adapter matchers look at it.
    `copies`: separate tensors of this shape (one weight an expert). `tied`: the storage is another layer's; the graph
    sets it from its edges, an implementation never does.
    `stored` is a dtype that the implementation insists on ("" follows the scenario).
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

    def __post_init__(self) -> None:
        assert len(self.dims) == len(self.shape), f"{self.name}: {len(self.shape)} dimensions, {len(self.dims)} names"

    @property
    def numel(self) -> int:
        """Elements of one copy."""
        return math.prod(self.shape)

    @property
    def is_owned(self) -> bool:
        """A parameter whose storage is this layer's own."""
        return not self.is_buffer and not self.tied

    @property
    def path(self) -> str:
        """The module that holds it: `mixer.in_proj` of `mixer.in_proj.weight`."""
        return self.name.rpartition(".")[0]
