"""Log-probabilities that are fused with the head: what NeMo RL's own function allocates and frees.

    python tests/truth/probe_fused_logprobs.py MODEL_UTILS > tests/truth/losses/fused-logprobs-nemo-rl-7ea279ab.json

MODEL_UTILS: `nemo_rl/distributed/model_utils.py` of NVIDIA-NeMo/RL 7ea279ab, whose function is run on one CPU (gloo,
one rank, so that nothing is gathered). A dispatch mode sees each operator's storages: they are noted with their signed
bytes when an operator returns them, and when they die. Kept are those that are at least as large as the shortest
chunk's logits in bf16.
"""

from __future__ import annotations

import ast
import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

VOCAB, HIDDEN = 512, 24
CASES = ((1, 12, 4), (2, 12, 4), (1, 8, 8), (1, 6, 16), (1, 10, 4))
NAMES = ("_compute_distributed_log_softmax_with_grad", "_compute_distributed_log_softmax",
         "ChunkedDistributedHiddenStatesToLogprobs")


def functions(path):
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") in NAMES]
    found = {"torch": torch, "Any": Any}
    exec(compile(tree, path, "exec"), found)  # noqa: S102
    return found


class Storages(TorchDispatchMode):
    """Signed bytes of storages of more than `least` bytes, in order."""

    def __init__(self, least):
        super().__init__()
        self.least, self.found, self.known = least, [], {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor):
                self.see(one)
        return out

    def see(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if size >= self.least and key not in self.known:
            self.known[key] = size
            self.found.append(size)
            weakref.finalize(storage, self.gone, key)

    def gone(self, key):
        self.found.append(-self.known.pop(key))


def case(function, batch, seq, chunk):
    hidden = torch.randn(seq, batch, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(0, VOCAB, (batch, seq))
    least = 2 * batch * VOCAB * (min(chunk, seq) if seq % chunk == 0 or chunk > seq else seq % chunk)
    with Storages(least) as forward:
        out = function.apply(hidden, target, weight, 0, VOCAB, chunk, dist.group.WORLD, False)
        gc.collect()
    with Storages(least) as backward:
        out.sum().backward()
        gc.collect()
    return {"batch": batch, "seq": seq, "chunk": chunk, "vocab": VOCAB, "hidden": HIDDEN, "least": least,
            "forward": forward.found, "backward": backward.found}


def main(utils):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    function = functions(utils)["ChunkedDistributedHiddenStatesToLogprobs"]
    found = [case(function, *one) for one in CASES]
    print(json.dumps({"torch": torch.__version__, "cases": found}).replace('{"batch"', '\n {"batch"'))


if __name__ == "__main__":
    main(*sys.argv[1:])
