"""Where FSDP2 allocates what: hooks in its internals that label storages and place markers in the event log.

The internals are patched by name (torch 2.13); another release may need other names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from .tracker import Tracker

Call = Callable[..., Any]


def install(tr: Tracker) -> None:
    storages(tr)
    buffers(tr)
    copies(tr)
    forward(tr)
    backward(tr)
    recomputation(tr)


def storages(tr: Tracker) -> None:
    def resize(old: Call) -> Call:
        def resize_(storage: torch.UntypedStorage, size: int) -> Any:  # how FSDP2 allocates and frees parameters
            tr.resized(storage, size)
            return old(storage, size)

        return resize_

    def mute(old: Call) -> Call:
        # DTensor infers metadata by running the operator on global fake tensors; a real run does that under its
        # own fake mode, so it must not be counted
        def propagate(self: Any, *a: Any, **k: Any) -> Any:
            tr.muted += 1
            try:
                return old(self, *a, **k)
            finally:
                tr.muted -= 1

        return propagate

    tr.patch(torch.UntypedStorage, "resize_", resize)
    for name in ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"):
        if hasattr(ShardingPropagator, name):
            tr.patch(ShardingPropagator, name, mute)


def buffers(tr: Tracker) -> None:
    reduce_scatter_allocations = 0

    def gather_output(old: Call) -> Call:
        def allocate(self: Any, size: Any, **k: Any) -> torch.Tensor:
            t: torch.Tensor = old(self, size, **k)
            tr.tag(t, "all_gather_output")
            return t

        return allocate

    def reduce_buffers(old: Call) -> Call:
        def allocate(self: Any, size: Any, **k: Any) -> torch.Tensor:
            nonlocal reduce_scatter_allocations
            t: torch.Tensor = old(self, size, **k)
            first = reduce_scatter_allocations == 0
            tr.tag(t, "reduce_scatter_input" if first else "reduce_scatter_output")
            reduce_scatter_allocations += 1
            return t

        return allocate

    def restart(old: Call) -> Call:
        def post_backward(self: FSDPParamGroup, *a: Any) -> Any:
            nonlocal reduce_scatter_allocations
            reduce_scatter_allocations = 0
            return old(self, *a)

        return post_backward

    tr.patch(collectives.DefaultAllGather, "allocate", gather_output)
    tr.patch(collectives.DefaultReduceScatter, "allocate", reduce_buffers)
    tr.patch(FSDPParamGroup, "post_backward", restart)


def copies(tr: Tracker) -> None:
    def cast_inputs(old: Call) -> Call:
        def get_inputs(fsdp_params: list[FSDPParam]) -> Any:
            out = old(fsdp_params)
            for tensors in out:
                for t in tensors:
                    tr.tag(t, "all_gather_cast_input")
            return out

        return get_inputs

    def copy_out(old: Call) -> Call:
        def init_all_gather_outputs(self: FSDPParam, *a: Any, **k: Any) -> Any:
            r = old(self, *a, **k)
            for t in self.all_gather_outputs:
                tr.tag(t, "unsharded_param")
            return r

        return init_all_gather_outputs

    tr.patch(collectives, "_get_param_all_gather_inputs", cast_inputs)
    tr.patch(FSDPParam, "init_all_gather_outputs", copy_out)


def name_of(group: FSDPParamGroup) -> str:
    return group._module_fqn or "root"


def forward(tr: Tracker) -> None:
    def before(old: Call) -> Call:
        def pre_forward(self: FSDPParamGroup, *a: Any) -> Any:
            tr.layer_stack.append(tr.layer)
            tr.layer = name_of(self)
            tr.mark(f"{tr.phase}:pre_forward_begin:{tr.layer}")
            r = old(self, *a)
            tr.mark(f"{tr.phase}:pre_forward_end:{tr.layer}")
            return r

        return pre_forward

    def after(old: Call) -> Call:
        def post_forward(self: FSDPParamGroup, *a: Any) -> Any:
            tr.mark(f"{tr.phase}:post_forward_begin:{name_of(self)}")
            r = old(self, *a)
            for p in self.fsdp_params:
                shard = getattr(p, "_sharded_post_forward_param_data", None)
                if shard is not None:
                    tr.tag(shard, "post_forward_shard")
            tr.mark(f"{tr.phase}:post_forward_end:{name_of(self)}")
            tr.layer = tr.layer_stack.pop() if tr.layer_stack else "-"
            return r

        return post_forward

    tr.patch(FSDPParamGroup, "pre_forward", before)
    tr.patch(FSDPParamGroup, "post_forward", after)


def backward(tr: Tracker) -> None:
    def before(old: Call) -> Call:
        def pre_backward(self: FSDPParamGroup, *a: Any) -> Any:
            tr.layer = name_of(self)
            tr.mark(f"bwd:pre_backward_begin:{tr.layer}")
            r = old(self, *a)
            tr.mark(f"bwd:pre_backward_end:{tr.layer}")
            return r

        return pre_backward

    def after(old: Call) -> Call:
        def post_backward(self: FSDPParamGroup, *a: Any) -> Any:
            previous, tr.layer = tr.layer, name_of(self)
            grads = 0  # no reference to a gradient may be kept here: FSDP2 frees them inside the original
            for p in self.fsdp_params:
                if hasattr(p, "_unsharded_param") and p.unsharded_param.grad is not None:
                    tr.tag(p.unsharded_param.grad, "unsharded_grad")
                    grads = 1
            tr.mark(f"bwd:post_backward_begin:{tr.layer}:grads={grads}")
            r = old(self, *a)
            for p in self.fsdp_params:
                if p.sharded_param.grad is not None:
                    tr.tag(p.sharded_param.grad, "sharded_grad")
                if p.unsharded_accumulated_grad is not None:
                    tr.tag(p.unsharded_accumulated_grad, "unsharded_grad")
            tr.mark(f"bwd:post_backward_end:{tr.layer}")
            tr.layer = previous
            return r

        return post_backward

    tr.patch(FSDPParamGroup, "pre_backward", before)
    tr.patch(FSDPParamGroup, "post_backward", after)


def recomputation(tr: Tracker) -> None:
    phases: list[str] = []

    def begin(old: Call) -> Call:
        def enter(self: Any) -> Any:
            phases.append(tr.phase)
            tr.phase = "recompute"
            tr.mark(f"bwd:recompute_begin:{tr.layer}")
            return old(self)

        return enter

    def end(old: Call) -> Call:
        def leave(self: Any, *a: Any) -> Any:
            r = old(self, *a)
            tr.phase = phases.pop()
            tr.mark(f"bwd:recompute_end:{tr.layer}")
            return r

        return leave

    tr.patch(torch_checkpoint._recomputation_hook, "__enter__", begin)
    tr.patch(torch_checkpoint._recomputation_hook, "__exit__", end)
