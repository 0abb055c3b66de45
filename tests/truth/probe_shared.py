"""What `fully_shard` of every layer makes of weights that layers share: small Zamba2 models on the meta device.

    python tests/truth/probe_shared.py > tests/truth/models/shared-torch-2.13.0.json

Over PyTorch's fake process group of two ranks; nothing of rankscope is imported. `parameters`: of the model before,
`sharded`: distinct parameters after, whole; `raises`: what the root says before its first forward.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from probe_models import PRESETS, built, cut
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4,
         "n_mamba_heads": 8, "mamba_d_state": 32, "vocab_size": 512, "adapter_rank": 16}
CASES = {"one-block": ("zamba2-1.2b", 24), "two-blocks": ("zamba2-2.7b", 31)}


def row(preset: str, layers: int, mesh: Any) -> dict[str, Any]:
    fields = json.loads((PRESETS / f"{preset}.json").read_text(encoding="utf-8"))
    model = built(cut({**fields, **SMALL}, layers))
    before = sum(p.numel() for p in model.parameters())
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    found = {"preset": preset, "overrides": {**SMALL, "num_hidden_layers": layers}, "parameters": before,
             "sharded": sum(p.numel() for p in model.parameters())}
    try:
        model._get_fsdp_state()._lazy_init()
    except ValueError as error:
        found["raises"] = str(error)
    return found


def main() -> None:
    """One object, a key a case."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    with torch.device("meta"):
        json.dump({name: row(*case, mesh) for name, case in CASES.items()}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
