"""Times what the host does for a unit of FSDP2, on one CPU: `host/fully-shard-torch-2.13.json`.

    python tests/truth/probe_fully_shard.py > tests/truth/host/fully-shard-torch-2.13.json

`fully_shard` wraps modules of 1 to 258 small parameters on a group that sends nothing; its two operators that copy
many tensors, one kernel each on a GPU, do nothing. What a unit takes longer than the same module by itself is told in
the time that a product of torch takes by kernel, as in `probe_scan.py`: machines differ, their ratio much less. Units
that stay gathered after forward tell what backward costs without gathering again, with and without a reduction. The
calls of collectives, which cost more with NCCL and are told of elsewhere, are subtracted.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from host_time import Seconds, operator_s, timed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

NUMBERS = (1, 2, 4, 9, 17, 33, 65, 129, 258)
"""Of parameters: 9 a Mamba-2 layer, 258 a layer of 128 experts with two each."""
WIDTH, RANKS, UNITS, ROUNDS = 8, 8, 8, 40


class Used(torch.autograd.Function):
    """Needs its parameters and gives each a gradient, in no time."""

    @staticmethod
    def forward(ctx, x: Tensor, *params: Tensor) -> Tensor:  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(*params)
        return x.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def,override]
        return grad, *[torch.zeros_like(param) for param in ctx.saved_tensors]


class Unit(nn.Module):
    def __init__(self, num: int) -> None:
        super().__init__()
        self.params = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16))
                                        for _ in range(num)])

    def forward(self, x: Tensor) -> Tensor:
        return Used.apply(x, *self.params)  # type: ignore[no-any-return]


def _units(num: int, reshards: bool | None) -> Any:
    """Several in a row; None: by themselves."""
    made = nn.Sequential(*[Unit(num) for _ in range(UNITS)])
    if reshards is not None:
        mesh, dtype = init_device_mesh("cpu", (RANKS,)), torch.bfloat16
        for unit in made:
            fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype, dtype), reshard_after_forward=reshards)
        fully_shard(made, mesh=mesh)
    return made


def _timed(module: nn.Module) -> Seconds:
    """Of each unit."""
    def out_of() -> Tensor:
        module.zero_grad()
        return torch.randn(4, WIDTH, dtype=torch.bfloat16, requires_grad=True)

    forward, backward = timed(module, out_of, ROUNDS)
    return forward / UNITS, backward / UNITS


def _of(num: int) -> dict[str, float]:
    """Operators of torch that a unit of so many parameters takes as long as."""
    plain, kept, resharded = _units(num, None), _units(num, False), _units(num, True)
    found = []
    for _ in range(9):
        times = [operator_s(), *_calls_s(), *_timed(plain), *_timed(kept), *_timed(resharded)]
        kept.set_requires_gradient_sync(False)
        found.append([*times, _timed(kept)[1]])
        kept.set_requires_gradient_sync(True)
    # The least of several medians: neighbours on the machine only add.
    unit, gather, scatter, ahead, back, _, reduced, gathered, both, released = map(min, zip(*found, strict=True))
    seconds = {"forward": gathered - ahead - gather, "backward": both - reduced - gather, "release": released - back,
               "reduce": reduced - released - scatter}
    return {name: round(each / unit, 1) for name, each in seconds.items()}


def _calls_s() -> tuple[float, float]:
    """Of a gather and of a reduce-scatter by themselves."""
    whole, part = torch.zeros(RANKS * WIDTH), torch.zeros(WIDTH)
    return (_median_s(lambda: dist.all_gather_into_tensor(whole, part)),
            _median_s(lambda: dist.reduce_scatter_tensor(part, whole)))


def _median_s(call: Callable[[], object]) -> float:
    found = []
    for _ in range(300):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _nothing(*_: object, **__: object) -> None:
    return None


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    library = torch.library.Library("fsdp", "IMPL")
    for name in ("split_with_sizes_copy", "chunk_cat"):
        library.impl(name, _nothing, "CPU", allow_override=True)
    torch._foreach_copy_ = _nothing
    each = {num: _of(num) for num in NUMBERS}
    print(json.dumps({"versions": {"torch": torch.__version__.partition("+")[0]}, "operators": each}, indent=1))


if __name__ == "__main__":
    main()
