"""DeepSpeed's ZeRO (0.19.6, edaa72212 `deepspeed/runtime/zero/`): optimizer states, gradients, parameters in parts.

[Note: ZeRO-1 and ZeRO-2] `stage_1_and_2.py`. Parameters are views of one flat 16-bit buffer, aligned to two
elements a rank; each rank has the fp32 master and moments of an equal partition. A gradient is copied into a bucket of
`reduce_bucket_size` elements as soon as autograd has made it (ZeRO-1: when the last microbatch is over), a larger one
stays unchanged. A full bucket is all-reduced, in a flat copy if it has elements of several ranks' partitions
(`average_tensor`); those of the rank's partition are copied out (`copy_grads_in_partition`), the rest is freed. The
bucket lives from the first gradient of a microbatch to its end (`setup_buckets`, `_release_ipg_buffers`); the partition
of a further microbatch is separate, and then added to the first. The step: infinities and norms, tensor by tensor; a
flat copy of the partition, its copy in fp32, then the former are freed; the update; one all-gather into the flat
parameters (`all_gather_into_tensor_dp_groups`, whatever the bucket size).

[Note: ZeRO-3] `stage3.py`, `partition_parameters.py`, `partitioned_param_coordinator.py`. Every parameter is split into
equal flat shards, the last one padded. Small ones (`stage3_param_persistence_threshold`) stay gathered in addition to
their shard. Others are gathered when their module runs, and released unless the recorded order uses them again within
`stage3_max_reuse_distance` elements; further ones are prefetched, until
`stage3_prefetch_bucket_size` elements are in flight or `stage3_max_live_parameters` are gathered. A single parameter is
used where it was gathered; several are copied out of a flat buffer when the first is waited for, which stays until each
of them was requested by its own module (`simcore/frameworks/deepspeed/zero12_copies.py`). The bucket and
the 16-bit gradients of the rank's shards are persistent; each bucket is reduce-scattered from a copy, unless it is one
tensor without a remainder. The step goes through groups of `sub_group_size` elements of the rank.

[Note: hpZ] `zero_hpz_partition_size`: when a parameter is released for the first time in a step, each rank
keeps a shard of it over the ranks of a smaller group, from which it is gathered from then on, until the step
(`_partition_param_sec`, invalidate_secondary_tensor); a frozen one's stays. What has one and what has not are gathered
apart (`__all_gather_params_`).

[Note: ZeRO and frozen parameters] Stage 1 and 2 do not shard them: their optimizer has only trained parameters. Stage
3 shards all, packed columns of bitsandbytes too, in elements of the column; constants are attributes and not sharded. A
coalesced gather is a separate collective for each dtype. A gathered column is freed late: see
[Note: ZeRO-3 and weights in 4 bits] in `simcore/frameworks/deepspeed/prefetch_trace.py`. transformers 5.23
`modeling_utils.py` (get_init_context) starts ZeRO-3 after a packed model is loaded: every rank has all of it
until then.

[Note: gradients apart] Without `contiguous_gradients` there is no bucket: gradients stay where autograd made them, and
a bucket's worth of several is sent from one flat copy. Then ZeRO-3 frees them. ZeRO-2 frees those without elements in
the rank's partition, with overlap_comm after the next reduction; ZeRO-1 at the end of the microbatch. The others stay
unsharded until the step (`stage_1_and_2.py`, reduce_ipg_grads, get_all_grad_tensors), those of a further microbatch
until they are added to the first's. With offload_optimizer stages 1 and 2 still have the bucket.

[Note: ZeRO on the host] With `offload_optimizer` the CPU keeps masters, moments and gradients in fp32 of the rank's
part, and steps. ZeRO-1 and 2 (`stage_1_and_2.py`, copy_grads_in_partition): no partition of gradients is on the device;
in a reduced bucket each tensor of the partition is checked, cast to fp32 and copied. In addition: a 16-bit copy of the
partition on its way back, a buffer as long as the largest parameter on either side; under accumulation the 16-bit
gradients of all parameters with elements in the partition, which every microbatch fetches, adds to and sends back.
ZeRO-3 (`stage3.py`, partition_grads): the 16-bit gradients of the shards are on the host, and a copy of each comes back
to the device for the norm and the cast. `offload_param` (ZeRO-3 only): shards are on the host, and are copied whenever
they are gathered (`partition_parameters.py`, _all_gather_dtype). Buffers are flat, and pinned but for moments, and for
masters of ZeRO-3. `buffer_count`, `buffer_size`, `max_in_cpu`, `fast_init` and pipelining are about NVMe only.

[Note: stage 0] `runtime/engine.py`. Every rank has all. Gradients of all microbatches stay where autograd made them;
behind the last backward (allreduce_gradients) they are laid flat in the order of the model, until more than
500,000,000 elements are together (allreduce_no_retain: the gradient that exceeds it is among them; no key changes it),
all-reduced, divided, and copied back; one gradient alone is sent where it is, and one rank does all this too. In 16
bits an optimizer wraps the given one (_configure_fp16_optimizer). Around DeepSpeed's FusedAdam (`fp16/
fused_optimizer.py`): one flat buffer each of parameters, masters and moments. Its step casts all gradients to fp32,
lays them flat beside that, then drops both the casts and the 16-bit gradients; norm, scaling and update work in place.
Around any other (`fp16/unfused_optimizer.py`): a master and moments for each parameter; norms cast gradients one by
one; all gradients are cast to fp32, and the 16-bit ones stay until the update is over. In fp32 nothing is wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.placement.layout import TensorLayout
from simcore.placement.strategy import ParallelStrategy

__all__ = ["PERSISTENT", "WholeStrategy", "ZeroStrategy"]

PERSISTENT = "persistent"
"""Name of the policy of parameters that stay gathered."""


@dataclass(frozen=True, slots=True)
class ZeroStrategy(ParallelStrategy):
    """ZeRO's settings for one job; sizes in elements.

    `stage`: 1, 2 or 3. `bucket`: reduce_bucket_size; `num_buffers`: two with overlap_comm under ZeRO-1 and 2.
    `reduce_dtype`: format of reductions, "" for that of products.
    `states_on_host`, `params_on_host`: offload_optimizer and offload_param; `pinned`: their pin_memory; `accumulates`:
    a step has several microbatches, and states on the host. `round_robin`: round_robin_gradients. `is_apart`: gradients
    have no bucket. Only for ZeRO-3: `ahead`: stage3_prefetch_bucket_size; `live`: stage3_max_live_parameters; `reuse`:
    stage3_max_reuse_distance; `sub_group`: sub_group_size; `secondary`: zero_hpz_partition_size or 0; `swap_buffers`:
    number of buffers for states on NVMe, 0 without it: [Note: ZeRO-3 and NVMe] in `simcore/hardware/nvme.py`.
    `moments`: layout of a state of a flat part, None for fp32: `simcore/frameworks/deepspeed/states/low_bit.py`.
    `orthogonalizes`: matrices are Muon's: [Note: Muon under ZeRO] in `simcore/frameworks/deepspeed/states/muon.py`.
    """

    stage: int
    axis: str
    bucket: int
    num_buffers: int = 1
    ahead: int = 0
    live: int = 0
    reuse: int = 0
    sub_group: int = 0
    states_on_host: bool = False
    params_on_host: bool = False
    pinned: bool = True
    accumulates: bool = False
    secondary: int = 0
    round_robin: bool = False
    is_apart: bool = False
    swap_buffers: int = 0
    reduce_dtype: str = ""
    moments: TensorLayout | None = None
    orthogonalizes: bool = False

    @property
    def holds_whole_parameters(self) -> bool:
        """True for ZeRO-1 and ZeRO-2, which shard no parameters."""
        return self.stage < 3

    @property
    def keeps_gradients(self) -> bool:
        """True for ZeRO-1: autograd adds those of later microbatches in place, and the last one's are reduced."""
        return self.stage == 1

    @property
    def step_varies_by_rank(self) -> bool:
        """True if a step depends on which tensors have elements in a rank's partition, and on how many.

        Gradients of those are kept without `contiguous_gradients`, and copied to the host one by one; Muon updates
        matrices whole.
        """
        return self.stage < 3 and (self.is_apart or self.states_on_host or self.orthogonalizes)


@dataclass(frozen=True, slots=True)
class WholeStrategy(ParallelStrategy):
    """Settings of stage 0 for one job: [Note: stage 0].

    `axis`: mesh axis over which gradients are all-reduced; "": one rank, which sends nothing. `is_flat_master`: the
    optimizer is DeepSpeed's FusedAdam, over flat masters. `casts`: parameters have 16 bits, and masters beside them.
    `reduce_dtype`: format of reductions, "" for that of products.
    """

    axis: str
    is_flat_master: bool
    casts: bool
    reduce_dtype: str = ""

    @property
    def holds_whole_parameters(self) -> bool:
        """True: every rank has all parameters."""
        return True

    @property
    def holds_whole_states(self) -> bool:
        """True: every rank has all optimizer states."""
        return True

    @property
    def is_flat(self) -> bool:
        """False: nothing is sharded."""
        return False
