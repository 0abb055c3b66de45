"""The block `search` of a scenario: what `rankscope search` may change, and what it ranks by. Options go before it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from simcore.inputs.block import Block, Name, Names
from simcore.inputs.bounds import RANKS

__all__ = ["SearchKeys"]

_Gpus = Annotated[tuple[Annotated[int, Field(ge=1, le=RANKS)], ...], Field(strict=False)]
_Values = Annotated[tuple[Any, ...], Field(strict=False)]


class SearchKeys(Block):
    """Space and objectives of a search for the best layouts; a run of the scenario does not read them."""

    gpus: _Gpus = Field(default=(), description="Numbers of GPUs to try; left out: the scenario's own")
    framework: Names = Field(default=(), description="Frameworks to try; left out: the scenario's own")
    topology: Names = Field(default=(), description="Machines to try; left out: the scenario's own")
    free: dict[Name, _Values] | None = Field(
        default=None, description="Free keys with the values to try, such as "
        "{mesh: [], training.seq_len: [2048, 4096]}; []: the usual ones"
    )
    where: Names = Field(default=(), description="Conditions over keys and results, such as mesh.tp <= 8")
    allow: Names = Field(default=(), description="Numerics that may change: bf16-params, bf16-grads, bf16-moments")
    objective: Name = Field(default="tokens", description="Quantity to rank by: tokens, step, cost, peak, gpus")
    pareto: Names = Field(default=("peak",), description="Other objectives of the Pareto set")
