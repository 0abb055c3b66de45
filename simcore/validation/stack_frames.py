"""Purpose of an allocation, by the files and functions of a framework in its Python stack frames.

Input: the frames that torch records with an allocation, innermost first. Output: a group; `other` if it is unknown.
Simulated categories are mapped to the same groups, which are as fine as frames can distinguish.

[Note: information in frames]
Kernels of backward run on autograd's own thread, without Python callers: their allocations have no frames (or, where
C++ frames were recorded, the engine's), so gradients and temporaries of backward are one group. Functions of a
framework that run in backward (hooks, recomputation) have frames. If no allocation has frames, none were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["ACTIVATIONS", "BACKWARD", "BUFFERS", "GROUP_OF", "OTHER", "RECOMPUTED", "group_of", "group_of_category",
           "said"]  # fmt: skip

PARAMETERS: Final = "parameters"
GATHERED: Final = "gathered parameters"
STATES: Final = "optimizer states"
STEP: Final = "optimizer's step"
ACTIVATIONS: Final = "activations"
RECOMPUTED: Final = "recomputed activations"
BACKWARD: Final = "backward: gradients and temporaries"
REDUCED: Final = "reduced gradients and their buffers"
MAIN_GRADS: Final = "main gradients"
BUFFERS: Final = "parameters and main gradients, in buffers"
WORKSPACES: Final = "workspaces of libraries"
OTHER: Final = "other"

GROUP_OF: Final = {
    "sharded_param": PARAMETERS, "ignored_param": PARAMETERS, "buffer": PARAMETERS, "post_forward_shard": GATHERED,
    "unsharded_param": GATHERED, "all_gather_output": GATHERED, "all_gather_cast_input": GATHERED,
    "opt_state": STATES, "main_param": STATES, "optim_temp": STEP, "activation": ACTIVATIONS, "input": ACTIVATIONS,
    "recompute": RECOMPUTED, "unsharded_grad": BACKWARD, "ignored_grad": BACKWARD, "backward_temp": BACKWARD,
    "sharded_grad": REDUCED, "reduce_scatter_input": REDUCED, "reduce_scatter_output": REDUCED,
    "main_grad": MAIN_GRADS, "workspace": WORKSPACES,
    # torch 2.13 torch/profiler/_memory_profiler.py, Category
    "parameter": PARAMETERS, "optimizer_state": STATES, "gradient": BACKWARD, "autograd_detail": ACTIVATIONS,
}
"""Group by category: the simulated ones, and those in snapshots of torch's profiler."""

_Rule = tuple[str, str, tuple[str, ...]]

_RULES: Final[tuple[_Rule, ...]] = (
    # TransformerEngine d0067d0d
    (WORKSPACES, "transformer_engine/pytorch/", ("get_workspace", "get_cublas_workspace",
                                                 "get_multi_stream_cublas_workspace", "get_dummy_wgrad")),
    # torch 2.13 torch/optim/adam.py and its neighbours; TransformerEngine d0067d0d; megatron-core 0.16.1
    (STATES, "torch/optim/", ("_init_group",)),
    (STATES, "transformer_engine/pytorch/optimizers/", ("initialize_state", "_initialize_state")),
    (STATES, "megatron/core/optimizer/__init__.py", ("init_state_fn",)),
    (STATES, "megatron/core/optimizer/distrib_optimizer.py", ("_build_model_and_main_param_groups",
                                                              "_init_optimizer_states_with_dummy_values")),
    (STATES, "megatron/core/optimizer/optimizer.py", ("__init__",)),
    # DeepSpeed 0.19.6
    (STATES, "deepspeed/runtime/zero/", ("_create_fp32_partitions", "initialize_optimizer_states")),
    (STEP, "torch/optim/", ()),
    (STEP, "transformer_engine/pytorch/optimizers/", ()),
    (STEP, "megatron/core/optimizer/", ()),
    # torch 2.13; up to 2.5 the folder was torch/distributed/_composable/fsdp
    (GATHERED, "_fsdp_collectives.py", ("foreach_all_gather", "foreach_all_gather_copy_out", "all_gather_copy_in_cuda",
                                        "_get_param_all_gather_inputs")),
    (GATHERED, "_fsdp_param.py", ("init_all_gather_outputs", "alloc_all_gather_outputs", "init_unsharded_param",
                                  "all_gather_inputs", "to_sharded_post_forward")),
    (GATHERED, "torch/distributed/fsdp/_flat_param.py", ("_alloc_padded_unsharded_flat_param",
                                                         "_all_gather_flat_param", "_use_low_precision_shard")),
    (GATHERED, "deepspeed/runtime/zero/partition_parameters.py", (
        "_all_gather", "_all_gather_dtype", "_all_gather_sequential", "_all_gather_coalesced", "_allgather_param",
        "_allgather_params_coalesced", "_allgather_params_sequential")),
    (REDUCED, "_fsdp_collectives.py", ("foreach_reduce", "foreach_reduce_scatter_copy_in")),
    (REDUCED, "torch/distributed/fsdp/_runtime_utils.py", ("_reduce_grad", "_get_reduce_scatter_tensors")),
    (RECOMPUTED, "torch/utils/checkpoint.py", ("recompute_fn", "unpack_hook", "backward")),
    (RECOMPUTED, "megatron/core/tensor_parallel/random.py", ("backward", "_recompute")),
    (RECOMPUTED, "transformer_engine/pytorch/distributed.py", ("backward",)),
    (BUFFERS, "megatron/core/distributed/param_and_grad_buffer.py", ("__init__",)),
    (PARAMETERS, "_fsdp_param.py", ("_init_sharded_param",)),
    (PARAMETERS, "_fsdp_init.py", ("_move_states_to_device",)),
    (PARAMETERS, "torch/nn/modules/module.py", ("to_empty", "_apply", "_load_from_state_dict", "load_state_dict")),
    (PARAMETERS, "transformers/modeling_utils.py", ("from_pretrained",)),
    (PARAMETERS, "megatron/core/tensor_parallel/layers.py", ("__init__",)),
    (BACKWARD, "", ("backward", "_engine_run_backward")),  # of a Function, and of Tensor: `apply` runs forward too
    (ACTIVATIONS, "torch/nn/modules/module.py", ("_call_impl", "_wrapped_call_impl")),
    (ACTIVATIONS, "torch/nn/functional.py", ()),
)
"""(group, part of the file's path, functions or () for any). The first rule that matches any frame applies."""

_OF_BACKWARD: Final = ("torch::autograd::Engine", "torch::autograd::Node")
_OF_BLAS: Final = ("CUDABlas", "CublasLt")
"""Parts of names of C++ functions: torch 2.13 `torch/csrc/autograd/engine.h`, `ATen/cuda/CUDAContextLight.h`."""


def group_of(frames: Sequence[dict[str, Any]], *, recorded: bool) -> str:
    """Purpose of an allocation, such as "optimizer states", from its Python stack frames.

    `frames`: dicts with `filename` and `name`, innermost first. `recorded`: it was made while frames were recorded, so
    none means backward; else without frames "other".
    """
    if not frames:
        return BACKWARD if recorded else OTHER
    places = [(said(f, "filename").replace("\\", "/"), said(f, "name")) for f in frames]
    if any(word in name for _, name in places for word in _OF_BLAS):
        return WORKSPACES
    for group, file, functions in _RULES:
        if any(file in path and (not functions or name in functions) for path, name in places):
            return group
    return BACKWARD if any(word in name for _, name in places for word in _OF_BACKWARD) else OTHER


def said(inside: Mapping[str, Any], key: str) -> str:
    """Text under a key; "" for other values, which in a foreign file may be nested to any depth."""
    value = inside.get(key)
    return value if isinstance(value, str) else ""


def group_of_category(category: str) -> str:
    """Purpose of an allocation by its category, a simulated one or one of torch's profiler; else "other"."""
    return GROUP_OF.get(category, OTHER)
