"""Measures allocations of linears that ranks share by DeepSpeed's AutoTP, on one CPU.

    python tests/truth/probe_autotp.py > tests/truth/tape/autotp-deepspeed-0.19.6-torch-2.13.0.json

DeepSpeed 0.19.6 as released, torch's fake process group. An MLP of its own `LinearLayer` (gate, up) and
`LinearAllreduce` (down), with transformers' SiLU and product between, and a head whose logits are gathered; each linear
with a bias or without. Each case is a process. `forward`, `backward`: allocations and frees of 1 kB and more, in order;
`sent`: each collective with its bytes (of a gather those of all ranks). Cases are drawn by a seed, none again because
of what came out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys

from json_lines import with_cases
from oracle.apart import run_apart
from probe_alst import profiled

SEED, COUNT = 20261208, 48
SENT = []


def drawn():
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        tp = rng.choice((2, 2, 3, 4, 8))
        found[f"p{number}"] = {
            "tp": tp, "batch": rng.choice((1, 1, 2, 3)), "tokens": rng.choice((33, 64, 100)),
            "hidden": rng.choice((64, 96, 160)), "width": tp * rng.choice((32, 75, 128)),
            "vocab": tp * rng.choice((101, 250)), "bias": rng.random() < 0.4, "has_head": rng.random() < 0.5}
    return found


def prepare():
    """Everything is imported once."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    import torch.distributed as dist
    for name in ("all_reduce", "all_gather_into_tensor"):
        setattr(dist, name, noting(name, getattr(dist, name)))
    import deepspeed.module_inject.layers  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def run(case):
    import torch
    import torch.distributed as dist
    from deepspeed import comm
    from deepspeed.module_inject import layers
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["tp"])
    comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    layers.set_autotp_mode(training=True)
    torch.backends.mkldnn.set_flags(False)  # its products have scratch of their own
    group = dist.new_group(list(range(case["tp"])))

    def linear(inputs, outputs, name):
        return torch.nn.Linear(inputs, outputs, bias=case["bias"], dtype=torch.bfloat16)

    hidden, width = case["hidden"], case["width"]
    gate, up = (layers.LinearLayer(linear(hidden, width, name), group, name=f"mlp.{name}") for name in ("gate", "up"))
    down = layers.LinearAllreduce(linear(width, hidden, "down"), group, name="mlp.down")
    head = layers.LinearLayer(linear(hidden, case["vocab"], "lm_head"), group, name="lm_head", gather_output=True)
    for _ in range(2):
        SENT.clear()
        for part in (gate, up, down, head):
            part.zero_grad(set_to_none=True)
        given = torch.randn(case["batch"], case["tokens"], hidden, dtype=torch.bfloat16, requires_grad=True)

        def forward(given=given):
            out = down(torch.nn.functional.silu(gate(given)) * up(given))
            return head(out) if case["has_head"] else out

        out, first = profiled(forward)
        made = torch.randn_like(out)
        _, second = profiled(lambda out=out, made=made: out.backward(made))
    return {"forward": first, "backward": second, "sent": list(SENT)}


def noting(name, call):
    import torch

    def noted(*given, **named):
        SENT.append([name, max(x.nbytes for x in (*given, *named.values()) if torch.is_tensor(x))])
        return call(*given, **named)
    return noted


def main():
    prepare()
    asked = drawn()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run_apart({name: asked[name] for name in sys.argv[1:] or asked}, run)
    print(with_cases({"deepspeed": "0.19.6", "torch": "2.13.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
