"""Purpose of an allocation by its stack frames."""

from __future__ import annotations

import pytest

import recorded
from recorded import frames
from simcore.validation.stack_frames import GROUP_OF, OTHER, group_of, group_of_category

MODULE = "torch/nn/modules/module.py:1:_call_impl"


@pytest.mark.parametrize(("stack", "group"), [
    (recorded.LOADED, "parameters"), (recorded.FORWARD, "activations"), (recorded.GATHER, "gathered parameters"),
    (recorded.REDUCE, "reduced gradients and their buffers"), (recorded.RECOMPUTE, "recomputed activations"),
    (recorded.STATES, "optimizer states"), (recorded.STEP, "optimizer's step"),
    (frames("torch/distributed/_composable/fsdp/_fsdp_collectives.py:1:foreach_all_gather", MODULE),
     "gathered parameters"),
    (frames("megatron/core/distributed/param_and_grad_buffer.py:797:__init__"),
     "parameters and main gradients, in buffers"),
    (frames("megatron/core/optimizer/distrib_optimizer.py:399:_build_model_and_main_param_groups"), "optimizer states"),
    (frames("megatron/core/optimizer/clip_grads.py:50:get_grad_norm_fp32"), "optimizer's step"),
    (frames("megatron/core/tensor_parallel/random.py:540:backward", "torch/autograd/function.py:1:apply"),
     "recomputed activations"),
    (frames("transformer_engine/pytorch/cpp_extensions/gemm.py:60:get_cublas_workspace", MODULE),
     "workspaces of libraries"),
    (frames("c10/cuda.cpp:1:at::cuda::getCurrentCUDABlasHandle()", MODULE), "workspaces of libraries"),
    (frames("my/function.py:9:backward", "torch/autograd/function.py:300:apply"),
     "backward: gradients and temporaries"),
    (frames("my/function.py:5:forward", "torch/autograd/function.py:575:apply", MODULE), "activations"),
    (frames("engine.cpp:1:torch::autograd::Engine::evaluate_function(std::shared_ptr)"),
     "backward: gradients and temporaries"),
    (frames("my/train.py:1:main"), OTHER)])
def test_groups(stack: list[dict[str, object]], group: str) -> None:
    assert group_of(stack, recorded=True) == group
    assert group_of(stack, recorded=False) == group


def test_without_frames_it_is_backward_only_while_frames_are_recorded() -> None:
    assert group_of([], recorded=True) == "backward: gradients and temporaries"
    assert group_of([], recorded=False) == OTHER


def test_frames_of_windows() -> None:
    (frame, *_) = recorded.STATES
    assert group_of([{**frame, "filename": frame["filename"].replace("/", "\\")}], recorded=True) == "optimizer states"


def test_categories() -> None:
    assert group_of_category("opt_state") == group_of_category("optimizer_state") == "optimizer states"
    assert group_of_category("made up") == OTHER
    assert all(GROUP_OF.values())
