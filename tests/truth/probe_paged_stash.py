"""Steps of Megatron-LM's own paged stash on a CPU: pages that it allocates, layers that it pages, and their order.

    python tests/truth/probe_paged_stash.py MEGATRON_GIT > tests/truth/stash/paged_stash.json

MEGATRON_GIT: a git directory of Megatron-LM; SOURCE is read from it at REVISION. Needs torch alone. Streams and events
are stand-ins; of both Triton kernels only the lists of free pages are kept. Each layer saves what TransformerEngine's
fused grouped MLP marks (`pytorch/utils.py`, mark_grouped_tensor). The first step counts, the second is told: `buffers`,
pages of each type and width; `overflow`: one was too small; `stowed`, `fetched`: [chunk, microbatch, layer] in order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from contextlib import nullcontext
from typing import Any, Final

import torch

from simcore.pipeline.schedule import Schedule, actions

REVISION: Final = "d98e8a64"
SOURCE: Final = "megatron/core/transformer/moe/paged_stash.py"
CASES: Final[list[dict[str, Any]]] = [
    {"stages": 1, "stage": 0, "chunks": 1, "layers": 3, "microbatches": 2, "rows": 2048, "capacity": 1.5, "cuda": 1.2},
    {"stages": 2, "stage": 0, "chunks": 1, "layers": 2, "microbatches": 4, "rows": 2048, "capacity": 1.5, "cuda": 1.1},
    {"stages": 2, "stage": 1, "chunks": 1, "layers": 2, "microbatches": 4, "rows": 2304, "capacity": 2.0, "cuda": 1.0},
    {"stages": 1, "stage": 0, "chunks": 1, "layers": 9, "microbatches": 1, "rows": 64, "capacity": 2.0, "cuda": 1.0},
    {"stages": 2, "stage": 0, "chunks": 2, "layers": 2, "microbatches": 4, "rows": 2048, "capacity": 1.5, "cuda": 1.2},
    {"stages": 2, "stage": 1, "chunks": 2, "layers": 1, "microbatches": 4, "rows": 2048, "capacity": 1.5, "cuda": -1.2},
]
HIDDEN, FFN = 64, 32


class _Copy:
    """Stand-in for the kernel that copies to pages: takes them from the list of free ones."""

    def __getitem__(self, grid: object) -> Any:
        def run(*args: Any, PAGE_SIZE: int, **_: object) -> None:
            rows, head, tail, overflow, new_head = (args[at] for at in (3, 6, 7, 10, 13))
            new_head.copy_(head)
            new_head[0] += -(-int(rows) // PAGE_SIZE)
            overflow.fill_(int(overflow or new_head[0] > tail[0]))

        return run


class _Pop:
    """Stand-in for the kernel that copies back: returns pages to the list of free ones."""

    def __getitem__(self, grid: object) -> Any:
        def run(*args: Any, PAGE_SIZE: int, **_: object) -> None:
            rows, tail, new_tail = (args[at] for at in (3, 9, 11))
            new_tail.copy_(tail)
            new_tail[0] += -(-int(rows) // PAGE_SIZE)

        return run


class _Stream:
    def wait_stream(self, other: object) -> None:
        """Waits for nothing."""


def upstream(git: str) -> types.ModuleType:
    """Megatron-LM's module, with stand-ins for what it imports."""
    command = ["git", f"--git-dir={git}", "show", f"{REVISION}:{SOURCE}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    given: dict[str, dict[str, Any]] = {
        "_rank_utils": {"log_single_rank": lambda *a, **k: None},
        "full_cuda_graph": {"FullCudaGraphWrapper": object},
        "optimizer.distrib_optimizer": {"DistributedOptimizer": object},
        "transformer.moe.ops.paged_stash": {
            "GLOBAL_BLOCK_SIZE": 1024, "paged_stash_copy_kernel": _Copy(), "paged_stash_pop_kernel": _Pop()},
        "transformer.moe.token_dispatcher": {"nccl_ep_release_context": lambda: None},
        "utils": {"get_attr_wrapped_model": None}}
    for name, values in given.items():
        module = types.ModuleType(f"megatron.core.{name}")
        module.__dict__.update(values)
        sys.modules[module.__name__] = module
    for name, value in {"Stream": _Stream, "current_stream": _Stream, "stream": lambda s: nullcontext(),
                        "is_available": lambda: False}.items():
        setattr(torch.cuda, name, value)
    made = types.ModuleType("paged_stash")
    exec(compile(text, SOURCE, "exec"), made.__dict__)  # noqa: S102 - upstream's own module
    return made


class _Experts(torch.autograd.Function):
    """Saves what the fused grouped MLP saves of `rows` places."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        places = x.shape[0]
        kept = [torch.zeros(places * HIDDEN, dtype=torch.uint8), torch.zeros(places // 32 * HIDDEN, dtype=torch.uint8),
                torch.zeros(places, 2 * FFN, dtype=torch.bfloat16), torch.zeros(places),
                torch.zeros(places * FFN, dtype=torch.float8_e4m3fn),
                torch.zeros(places // 32 * FFN, dtype=torch.float8_e8m0fnu)]
        for tensor, scales in zip(kept, (False, True, False, False, False, True), strict=True):
            tensor.grouped_tensor_scale_inv = scales  # type: ignore[attr-defined]
        ctx.save_for_backward(*kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        assert len(ctx.saved_tensors) == 6
        return grads[0]


def _step(stash: types.ModuleType, case: dict[str, Any], config: Any) -> None:
    stash.paged_stash_reset(enabled=True, config=config)
    made: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    places = int(case["rows"] * case["capacity"])
    name = "1f1b" if case["chunks"] == 1 else "interleaved"
    schedule = Schedule(name, case["stages"], case["chunks"], case["stages"])
    for action in actions(schedule, case["stage"], case["microbatches"]):
        key = action.chunk, action.microbatch
        if not action.forward:
            _, out = made.pop(key)
            out.sum().backward()
            continue
        stash.paged_stash_init_chunk_handler(case["chunks"], action.chunk)
        first = x = torch.zeros(places, 1, requires_grad=True)
        for _ in range(case["layers"]):
            x = stash.paged_stash_group_start(x)
            with stash.get_paged_stash_context("grouped_mlp", places, torch.tensor(case["rows"]),
                                               int(places // case["capacity"])):
                x = _Experts.apply(x)
            x = stash.paged_stash_group_commit(x, "grouped_mlp")
        made[key] = first, x


def found(stash: types.ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """What the second step of a case does."""
    stash.PagedStashManager.STASH_MGR = None
    manager = stash.PagedStashManager.get_instance()
    config = types.SimpleNamespace(moe_paged_stash_page_size=64, moe_paged_stash_buffer_size_factor_cuda=case["cuda"],
                                   moe_paged_stash_buffer_size_factor_cpu=0.0)
    _step(stash, case, config)
    stowed: list[list[int]] = []
    fetched: list[list[int]] = []
    for name, into in (("stash_paged_tensors", stowed), ("reload_paged_tensors", fetched)):
        real = getattr(manager, name)

        def told(layer: int, *args: Any, _real: Any = real, _into: list[list[int]] = into, **more: Any) -> None:
            _into.append([layer // 1_000_000 - 1, layer % 1000 - 1, layer // 1000 % 1000 - 1])
            _real(layer, *args, **more)

        setattr(manager, name, told)
    _step(stash, case, config)
    buffers = {f"{str(dtype).removeprefix('torch.')} x {width}": buffer.num_cuda_pages
               for dtype, widths in manager.stash_buffers.items() for width, buffer in widths.items()}
    return {"case": case, "buffers": buffers, "overflow": bool(stash.check_paged_stash_overflow()),
            "stowed": stowed, "fetched": fetched}


if __name__ == "__main__":
    module = upstream(sys.argv[1])
    print("[" + ",\n".join(json.dumps(found(module, case)) for case in CASES) + "]")
