"""torch's FullyShardedDataParallel (FSDP1): units whose parameters are one flat parameter each.

[Note: FSDP1] torch 2.13 `torch/distributed/fsdp/_flat_param.py` and `_runtime_utils.py`. A unit's parameters are
concatenated in one flat parameter, of which every rank keeps an equal shard, the last one padded (`_get_shard`). With
`use_orig_params` each begins at a multiple of 16 bytes in the compute dtype, and the flat parameter is padded to the
ranks, so that nothing is copied to be reduced (`_init_flat_param_and_metadata`). A unit is unsharded into one buffer
with the parameters themselves; under mixed precision a low-precision copy of the shard is made for it and freed at once
(`pre_unshard`, `post_unshard`). It is freed when its forward ends (FULL_SHARD), but for the root's; before its backward
it is gathered again, and the one before it too (BACKWARD_PRE), or when it has been freed again (BACKWARD_POST).
The parameters are views of the flat one by `torch.split`, so the unit's gradients wait for each other and are then
concatenated to a flat gradient, with zeros for frozen parameters. It is cast to the reduce dtype, padded,
reduce-scattered (`_post_backward_hook`); the shard is cast to the stored dtype. Under `no_sync` it stays unsharded, in
the compute dtype. NO_SHARD keeps the full flat parameter, its low-precision copy is made and freed with forward and
backward, and the gradient is all-reduced in place and cast as a whole. One rank always runs NO_SHARD
(`_init_utils.py`). `forward_prefetch` also makes the views of the next unit before this one runs, so autograd
concatenates its gradients only after this one's backward: a layer more of parameters and gradients. `limit_all_gathers`
makes the host wait before a gather for the last but one unit to be freed: the bytes are the same, because torch counts
allocations in the order of the host's requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.placement.strategy import FLAT, ParallelStrategy, RlWorker

__all__ = ["Fsdp1Strategy", "ShardingStrategy"]

ShardingStrategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
"""Strategy among the ranks that share a model; HYBRID_SHARD is FULL_SHARD with a second axis."""


@dataclass(frozen=True, slots=True)
class Fsdp1Strategy(ParallelStrategy):
    """FSDP1's settings for one job.

    `sharding_strategy`: torch's name; a hybrid one is the one it is made of, with a `replicate_axis`.
    `axis`: mesh axis over which a flat parameter is cut; `replicate_axis`: mesh axis whose ranks hold equal shards, ""
    if there is none. `reduce_dtype`: dtype of the reduce-scatter. `prefetch`: the next unit of backward is gathered
    before ("pre") or after ("post") this one's backward, or not (""). `ahead`: the next unit of forward is gathered
    before this one's. `aligned`: parameters begin at multiples of 16 bytes (`use_orig_params`). `sync`: gradients are
    reduced after the "last" microbatch only, or after "every" one. `on_host`: shards and reduced gradients are in host
    memory.
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
    def rl_worker(self) -> RlWorker:
        """Worker of verl with flat parameters, of actor and reference policy."""
        return FLAT

    @property
    def gathers_on_side_streams(self) -> bool:
        """True: all-gathers have a CUDA stream for themselves.

        torch 2.13 `_runtime_utils.py`, _init_streams: _unshard_stream.
        """
        return True
