"""A loop over experts as the repository of Nemotron-3-Nano has it: what torch allocates, and what is kept.

    python tests/truth/probe_hub.py > tests/truth/tape/hub-torch-2.13.0.json

The loop is written here as NemotronHMOE.moe runs it. A CPU runs it once forward and backward, a dispatch mode sees
every storage that an operator makes. Goes out: bytes kept when forward is over, and bytes of every birth in order,
each pass apart.
`aminmax` of one_hot, which asks for the numbers' range on a CPU alone, is left out.
"""

from __future__ import annotations

import json
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, FFN, EXPERTS, TOP_K, TOKENS = 256, 128, 8, 2, 64


class Births(TorchDispatchMode):
    """Storages alive, and bytes of every one that was born."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.alive = {t.untyped_storage()._cdata: 0 for t in known}
        self.born: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, torch.Tensor) and "aminmax" not in str(func):
                self.see(one.untyped_storage())
        return out

    def see(self, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() and storage._cdata not in self.alive:
            self.alive[storage._cdata] = storage.nbytes()
            self.born.append(storage.nbytes())
            weakref.finalize(storage, self.alive.pop, storage._cdata)

    def taken(self) -> list[int]:
        made, self.born = self.born, []
        return made


class Expert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = torch.nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(torch.square(F.relu(self.up_proj(x))))


def moe(experts, hidden, indices, weights):
    final = torch.zeros_like(hidden, dtype=weights.dtype)
    masks = F.one_hot(indices, num_classes=EXPERTS).permute(2, 0, 1)
    for expert, mask in zip(experts, masks, strict=True):
        token, place = torch.where(mask)
        own = weights[token, place]
        rows = hidden[token]
        out = expert(rows)
        weighted = out * own.unsqueeze(-1)
        final.index_add_(0, token, weighted)
    return final.type(hidden.dtype)


def main():
    experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS)).bfloat16()
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(TOKENS, TOP_K, requires_grad=True)
    indices = torch.stack([(torch.arange(TOKENS) + i) % EXPERTS for i in range(TOP_K)], 1)
    seed = torch.ones_like(hidden)
    with Births([hidden, weights, indices, seed, *experts.parameters()]) as births:
        out = moe(experts, hidden, indices, weights)
        kept, forward = sum(births.alive.values()), births.taken()
        out.backward(seed)
        backward = births.taken()
    print(json.dumps({"torch": torch.__version__, "kept": kept, "forward": forward, "backward": backward}))


if __name__ == "__main__":
    main()
