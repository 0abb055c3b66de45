"""torch's FullyShardedDataParallel (FSDP1): units whose parameters are one flat parameter each.

[Note: FSDP1] torch 2.13 `torch/distributed/fsdp/_flat_param.py` and `_runtime_utils.py`. A unit's parameters lie end to
end in one flat parameter, of which every rank keeps an equal part, the last one padded (`_get_shard`). With
`use_orig_params` each begins at a multiple of 16 bytes as it is used, and the whole is padded to the ranks, so that
nothing is copied to be reduced (`_init_flat_param_and_metadata`). A unit is gathered into one buffer that holds the
parameters themselves; under mixed precision a copy of the part in low precision is made for it and goes at once
(`pre_unshard`, `post_unshard`). It is freed when its forward ends (FULL_SHARD), but for the root's; before its backward
it is gathered again, and the one before it too (BACKWARD_PRE), or when it has been freed again (BACKWARD_POST).
The parameters are views of the flat one by `torch.split`, so the unit's gradients wait for each other and are then laid
together in a flat gradient, zeros where nothing is trained. It is cast to the reduce dtype, padded, reduce-scattered
(`_post_backward_hook`); the part is cast to the stored dtype. Under `no_sync` it stays whole, in the dtype of the
products. NO_SHARD has the whole flat parameter, its low-precision copy is made and freed with forward and backward, and
the gradient is all-reduced in place and cast whole. One rank is NO_SHARD, whatever was asked for (`_init_utils.py`).
`forward_prefetch` makes the views of the next unit too, before this one runs, so autograd lays its gradients together
only after this one's backward: a layer more of parameters and gradients.
`limit_all_gathers` makes the host wait before a gather for the last but one unit to be freed: no bytes differ, as torch
counts what is allocated in the order in which the host asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.placement.strategy import ParallelStrategy

__all__ = ["Fsdp1Strategy", "ShardingStrategy"]

ShardingStrategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
"""Within the ranks that share a model; HYBRID_SHARD is FULL_SHARD with a second axis."""


@dataclass(frozen=True, slots=True)
class Fsdp1Strategy(ParallelStrategy):
    """`axis`: whose ranks share a flat parameter; `replicate_axis`: whose hold the same part, "" for nobody.

    `prefetch`: the next unit of backward is gathered before (`pre`) or after (`post`) this one's, or not (""); `ahead`:
    so is the next one of forward, before. `aligned`: `use_orig_params`. `sync`: gradients are reduced after the last
    microbatch alone, or after every one. `on_host`: parts and reduced gradients rest there.
    """

    sharding_strategy: ShardingStrategy
    axis: str
    replicate_axis: str
    reduce_dtype: str
    prefetch: str = "pre"
    ahead: bool = False
    aligned: bool = False
    sync: str = "every"
    on_host: bool = False

    @property
    def gathers_on_side_streams(self) -> bool:
        """Torch 2.13 `_runtime_utils.py`, _init_streams: _unshard_stream."""
        return True
