"""Measures decoder layers with LayerNorm under autocast: of Phi, StarCoder 2 and Nemotron (transformers 5.23), in fp32.

    python tests/truth/probe_autocast_norms.py > tests/truth/tape/autocast-norms-torch-2.13.0-transformers-5.23.0.json

Fake tensors on a CPU, one process, parameters in fp32 that train. torch's autocast for CPUs runs the products; what
that for CUDA does besides is done by hand: LayerNorm and powers cast what they get to fp32 (torch 2.13
`aten/src/ATen/autocast_mode.cpp`, AT_FORALL_FP32). LayerNorm's statistics are in fp32, as CUDA's are.
"""

from __future__ import annotations

import gc
import importlib
import json
from typing import Any

import probe_automodel_mla as mla
import torch
from oracle.steps import as_on_cuda
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

SHAPE = {"hidden_size": 256, "vocab_size": 1000, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 8}
CASES: dict[str, dict[str, Any]] = {
    "phi": {"preset": "phi-2", "num_key_value_heads": 8, "resid_pdrop": 0.0, "partial_rotary_factor": 0.5},
    "starcoder2": {"preset": "starcoder2-3b", "num_key_value_heads": 4, "residual_dropout": 0.0,
                   "embedding_dropout": 0.0, "attention_dropout": 0.0, "sliding_window": None},
    "nemotron": {"preset": "nemotron-mini-4b", "num_key_value_heads": 4, "head_dim": 32}}
BATCH, SEQ = 2, 192


def layer_of(family: str, overrides: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(family, **SHAPE, **{k: v for k, v in overrides.items() if k != "preset"})
    config._attn_implementation = "sdpa"
    modelling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    name = {"phi": "PhiDecoderLayer", "starcoder2": "Starcoder2DecoderLayer",
            "nemotron": "NemotronDecoderLayer"}[family]
    return getattr(modelling, name)(config, 0).train()


def events(family: str, overrides: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    with fake:
        layer = layer_of(family, overrides)
    rotary = 32 if family == "starcoder2" else 16
    seen: list[int] = []
    with fake, tr:
        leaf = torch.empty((), requires_grad=True)
        x = mla.Around.apply(leaf, (BATCH, SEQ, 256), seen, tr.events)
        tables = tuple(torch.empty(1, SEQ, rotary) for _ in range(2))
        for known in (*layer.parameters(), *tables):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x, attention_mask=None, position_embeddings=tables)
            out = out[0] if isinstance(out, tuple) else out
            middle = len(tr.events)
        end = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": {"family": family, **overrides}, "forward": found[start:middle], "casts": found[middle:end],
            "backward": found[after:before - 1]}


def as_autocast_of_cuda() -> None:
    as_on_cuda.put_in_place()
    norm, power = torch.nn.functional.layer_norm, torch.pow

    def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if torch.is_autocast_enabled("cpu"):
            x, weight, bias = x.float(), weight.float(), bias.float()
        return norm(x, shape, weight, bias, eps)

    torch.nn.functional.layer_norm = layer_norm
    torch.pow = lambda x, exponent: power(x.float(), exponent)
    torch.square = lambda x: power(x.float(), 2)  # at::square is made of at::pow, which autocast is asked for again
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda device="cpu": asked(device)  # Nemotron's own code asks of CUDA


if __name__ == "__main__":
    as_autocast_of_cuda()
    rows = {name: events(name, overrides) for name, overrides in CASES.items()}
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}"
                             for name, row in rows.items()) + "\n}")
