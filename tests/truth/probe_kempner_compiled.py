"""Counts what KempnerForge's layers send over tensor parallel ranks, eager and compiled: `compiled/*.json`.

    python tests/truth/probe_kempner_compiled.py > tests/truth/compiled/kempnerforge-5666d0d16153.json

Its own transformer under its own plan and FSDP2, 4 x 2 ranks that send nothing, is run and compiled as its
`build_parallel_model` does (`torch.compile(model)`); a layer's calls are half of what four layers call beyond two.
With checkpoints torch 2.13 refuses to compile it (a saved AsyncCollectiveTensor), so that none are counted.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from kempnerforge.config.model import ModelConfig
from kempnerforge.distributed.parallel import apply_fsdp2, default_mp_policy
from kempnerforge.distributed.tensor_parallel import apply_tensor_parallel
from kempnerforge.model.transformer import Transformer
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

SEQ, FEW, MANY = 32, 2, 4
CALLS = {"_c10d_functional::all_gather_into_tensor": "all_gather",
         "_c10d_functional::reduce_scatter_tensor": "reduce_scatter"}


def _model(layers: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_shard", "tp"))
    config = ModelConfig(dim=64, n_layers=layers, n_heads=4, n_kv_heads=4, vocab_size=128, ffn_hidden_dim=128,
                         max_seq_len=SEQ)
    with torch.device("meta"):
        model = Transformer(config)
    model.to(torch.bfloat16).train()
    apply_tensor_parallel(model, mesh)
    apply_fsdp2(model, mesh, mp_policy=default_mp_policy(torch.bfloat16))
    model.to_empty(device="cpu")
    model.init_weights_and_freqs()
    return model


def _called(run: Any) -> tuple[Counter[str], Any]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        out = run()
    return Counter({CALLS[e.key]: e.count for e in seen.key_averages() if e.key in CALLS}), out


def _of(layers: int, *, compiled: bool) -> tuple[Counter[str], Counter[str]]:
    torch._dynamo.reset()
    model = _model(layers)
    run = torch.compile(model) if compiled else model
    tokens = torch.zeros(1, SEQ, dtype=torch.int64)
    for _ in range(2):  # the first compiles
        forward, loss = _called(lambda: run(tokens).float().sum())
        backward, _ = _called(loss.backward)
    return forward, backward


def _of_a_layer(*, compiled: bool) -> dict[str, dict[str, int]]:
    pairs = zip(_of(FEW, compiled=compiled), _of(MANY, compiled=compiled), strict=True)
    each = [{name: (many[name] - few[name]) // (MANY - FEW) for name in CALLS.values()} for few, many in pairs]
    return dict(zip(("forward", "backward"), each, strict=True))


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    print(json.dumps({"versions": {"kempnerforge": "5666d0d16153", "torch": torch.__version__.partition("+")[0]},
                      "eager": _of_a_layer(compiled=False), "compiled": _of_a_layer(compiled=True)}, indent=1))


if __name__ == "__main__":
    main()
