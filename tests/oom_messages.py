"""Messages of runs that ran out of memory: figures from public issues, as short texts with the frames that matter.

Paths and lines between are left out. Each row names its source, and what is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.validation.out_of_memory.traceback import Phase


@dataclass(frozen=True)
class Case:
    """A text, its source, and what it says: sizes as printed ("" where it says none), phase, rank, GPU."""

    source: str
    about: str
    text: str
    asked: str
    capacity: str = ""
    free: str = ""
    allocated: str = ""
    unused: str = ""
    in_use: str = ""
    others: str = ""
    phase: Phase = ""
    rank: int | None = None
    device: int | None = 0


CASES: Final = (
    Case("https://github.com/pytorch/pytorch/issues/18853", "torch 1.0",
         'Traceback (most recent call last):\n  File "memtestcase.py", line 78, in fwbw\n    yhat = model(X)\n'
         '  File "site-packages/torch/nn/modules/module.py", line 489, in _call_impl\n'
         "    result = self.forward(*input, **kwargs)\n"
         '  File "site-packages/torch/nn/modules/activation.py", line 50, in forward\n'
         "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 15.90 GiB total "
         "capacity; 14.25 GiB already allocated; 991.56 MiB free; 607.00 KiB cached)",
         "1024.00 MiB", "15.90 GiB", "991.56 MiB", "14.25 GiB", "607.00 KiB", phase="forward"),
    Case("https://github.com/facebookresearch/ParlAI/issues/4452", "torch 1.11",
         "rank:  3 | 2022-04-03 18:44:26,615 CRITICAL | Traceback (most recent call last):\n"
         '  File "parlai/utils/fp16.py", line 194, in backward\n    loss.backward()\n'
         '  File "site-packages/torch/_tensor.py", line 363, in backward\n'
         '  File "site-packages/torch/autograd/__init__.py", line 173, in backward\n'
         "    Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\n"
         "RuntimeError: CUDA out of memory. Tried to allocate 21.06 GiB (GPU 3; 79.35 GiB total capacity; "
         "63.19 GiB already allocated; 8.57 GiB free; 68.48 GiB reserved in total by PyTorch) If reserved "
         "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
         "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
         "21.06 GiB", "79.35 GiB", "8.57 GiB", "63.19 GiB", "5.29 GiB", phase="backward", device=3),
    Case("https://github.com/hpcaitech/ColossalAI/issues/3509", "torch 1.13",
         "Traceback (most recent call last):\n"
         '  File "coati/trainer/strategies/colossalai.py", line 154, in optimizer_step\n    optimizer.step()\n'
         '  File "colossalai/zero/sharded_optim/low_level_optim.py", line 480, in step\n    self.optim.step()\n'
         "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.12 GiB (GPU 5; 23.70 GiB "
         "total capacity; 22.00 GiB already allocated; 292.56 MiB free; 22.29 GiB reserved in total by PyTorch)",
         "3.12 GiB", "23.70 GiB", "292.56 MiB", "22.00 GiB", "0.29 GiB", phase="optimizer", device=5),
    Case("https://github.com/GanjinZero/RRHF/issues/30", "torch 2.0, inside a warning",
         "Traceback (most recent call last):\n"
         '  File "site-packages/torch/distributed/fsdp/_state_dict_utils.py", line 9, in _full_post_state_dict_hook\n'
         "UserWarning: Failed to clone() tensor with name lm_head.weight. Error: CUDA out of memory. Tried "
         "to allocate 982.00 MiB (GPU 2; 79.35 GiB total capacity; 77.16 GiB already allocated; 272.19 MiB "
         "free; 77.16 GiB reserved in total by PyTorch)",
         "982.00 MiB", "79.35 GiB", "272.19 MiB", "77.16 GiB", "0 bytes", phase="save", device=2),
    Case("https://github.com/meta-llama/llama-cookbook/issues/320", "torch 2.1: capacty; in a container",
         '  File "utils/train_utils.py", line 104, in train\n    loss.backward()\n'
         '  File "site-packages/torch/autograd/__init__.py", line 251, in backward\n'
         "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.08 GiB. GPU 0 has a total "
         "capacty of 22.20 GiB of which 687.12 MiB is free. Process 40666 has 21.53 GiB memory in use. Of "
         "the allocated memory 9.71 GiB is allocated by PyTorch, and 10.61 GiB is reserved by PyTorch but "
         "unallocated.",
         "10.08 GiB", "22.20 GiB", "687.12 MiB", "9.71 GiB", "10.61 GiB", in_use="21.53 GiB", phase="backward"),
    Case("https://github.com/linkedin/Liger-Kernel/pull/47", "WSL: more in use than there is",
         ">       return torch._C._nn.cross_entropy_loss(input, target, weight, _Reduction.get_enum(reduction))\n"
         "E       torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a "
         "total capacity of 8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process "
         "has 17179869184.00 GiB memory in use. Of the allocated memory 13.67 GiB is allocated by PyTorch, "
         "and 9.62 MiB is reserved by PyTorch but unallocated.\n\n"
         "site-packages/torch/nn/functional.py:3059: OutOfMemoryError",
         "1.95 GiB", "8.00 GiB", "0 bytes", "13.67 GiB", "9.62 MiB"),
    Case("https://github.com/huggingface/trl/issues/3436", "told twice: bare, and after its stack",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total "
         "capacity of 9.68 GiB of which 95.75 MiB is free. Including non-PyTorch memory, this process has "
         "9.54 GiB memory in use. Of the allocated memory 6.61 GiB is allocated by PyTorch, and 2.57 GiB "
         "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
         "Memory Management\n[rank0]: Traceback (most recent call last):\n"
         '[rank0]:   File "site-packages/transformers/trainer.py", line 3782, in training_step\n'
         "[rank0]:     self.accelerator.backward(loss, **kwargs)\n[rank0]:     ^^^^^^^^^^^^^^^^^\n"
         "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a "
         "total capacity of 9.68 GiB of which 95.75 MiB is free. Including non-PyTorch memory, this "
         "process has 9.54 GiB memory in use. Of the allocated memory 6.61 GiB is allocated by PyTorch, "
         "and 2.57 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
         "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
         "documentation for Memory Management",
         "388.00 MiB", "9.68 GiB", "95.75 MiB", "6.61 GiB", "2.57 GiB", in_use="9.54 GiB", phase="backward", rank=0),
    Case("https://github.com/modelscope/ms-swift/issues/5943", "nothing in use; CUDA graphs",
         "[rank15]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB. GPU 7 has a "
         "total capacity of 79.11 GiB of which 2.61 GiB is free. Including non-PyTorch memory, this "
         "process has 0 bytes memory in use. Of the allocated memory 48.15 GiB is allocated by PyTorch, "
         "with 50.00 MiB allocated in private pools (e.g., CUDA Graphs), and 3.49 GiB is reserved by "
         "PyTorch but unallocated.\n[rank12]: Traceback (most recent call last):\n",
         "2.63 GiB", "79.11 GiB", "2.61 GiB", "48.15 GiB", "3.49 GiB", rank=15, device=7),
    Case("https://github.com/simplescaling/s1/issues/106", "H200",
         "[rank0]: Traceback (most recent call last):\n"
         '[rank0]:   File "dist-packages/transformers/trainer.py", line 3572, in training_step\n'
         "[rank0]:     loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)\n"
         '[rank0]:   File "dist-packages/torch/nn/modules/module.py", line 1747, in _call_impl\n'
         "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.46 GiB. GPU 0 has a "
         "total capacity of 139.72 GiB of which 3.02 GiB is free. Process 3373672 has 136.69 GiB memory in "
         "use. Of the allocated memory 119.21 GiB is allocated by PyTorch, and 14.04 GiB is reserved by "
         "PyTorch but unallocated.",
         "8.46 GiB", "139.72 GiB", "3.02 GiB", "119.21 GiB", "14.04 GiB", in_use="136.69 GiB", phase="forward", rank=0),
    Case("https://github.com/huggingface/trl/issues/5207", "torch 2.9 and later; several processes share the GPU",
         "FAILED tests/test_dpo_trainer.py - torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
         "76.00 MiB. GPU 0 has a total capacity of 14.74 GiB of which 42.19 MiB is free. Process 21219 has "
         "284.00 MiB memory in use. Process 21222 has 3.40 GiB memory in use. Process 21213 has 258.00 MiB "
         "memory in use. Process 21216 has 10.77 GiB memory in use. Of the allocated memory 10.59 GiB is "
         "allocated by PyTorch, and 42.18 MiB is reserved by PyTorch but unallocated. If reserved but "
         "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True",
         "76.00 MiB", "14.74 GiB", "42.19 MiB", "10.59 GiB", "42.18 MiB", in_use="10.77 GiB", others="3.93 GiB"),
    Case("https://github.com/NVIDIA-NeMo/Automodel/issues/3907", "wrapped, without a line about processes",
         '  File "recipes/llm/train_ft.py", line 1208, in _forward_backward_step\n'
         '  File "site-packages/torch/_tensor.py", line 623, in backward\n'
         '  File "site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward\n'
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 720.00 MiB.\n"
         "GPU 0 has a total capacity of 184.31 GiB of which 443.94 MiB is free.\n"
         "Of the allocated memory 171.63 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch "
         "but unallocated.\n",
         "720.00 MiB", "184.31 GiB", "443.94 MiB", "171.63 GiB", "2.00 GiB", phase="backward"),
    Case("https://github.com/Lightning-AI/litgpt/issues/303", "a traceback without frames",
         "iter 4 step 0: loss 2.6297, iter time: 827.80ms\nTraceback (most recent call last):\n"
         "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.06 GiB. GPU 0 has a total "
         "capacty of 23.70 GiB of which 1.27 GiB is free. Including non-PyTorch memory, this process has "
         "22.43 GiB memory in use. Of the allocated memory 12.62 GiB is allocated by PyTorch, and 8.65 GiB "
         "is reserved by PyTorch but unallocated.",
         "8.06 GiB", "23.70 GiB", "1.27 GiB", "12.62 GiB", "8.65 GiB", in_use="22.43 GiB"),
)
