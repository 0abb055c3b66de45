"""Measures how full the fullest expert is while KempnerForge's own model begins to train: `routing/*.json`.

    python tests/truth/probe_routing.py > tests/truth/routing/kempnerforge-5666d0d16153.json

Real weights and numbers on one CPU: a scaled model with the package's own initial weights, loss and auxiliary loss, its
trainer's AdamW and clipping, and random tokens, as its trainer draws them without a data set. `kempnerforge` is to be
on the path.
"""

from __future__ import annotations

import json
from typing import Any

STEPS, WARMUP, RATE, AUX_LOSS_WEIGHT = 17, 5, 3e-4, 0.01
SHAPE = {"dim": 512, "n_layers": 12, "n_heads": 8, "n_kv_heads": 2, "vocab_size": 8192, "ffn_dim_multiplier": 1.3,
         "max_seq_len": 256, "rope_theta": 5e5, "num_experts": 8, "moe_top_k": 2}  # fmt: skip
BATCH = (2, 256)


def shares() -> list[list[float]]:
    """For every step and layer, the share of tokens that go to the fullest expert."""
    import torch
    from kempnerforge.config.model import ModelConfig
    from kempnerforge.model.transformer import Transformer
    from kempnerforge.training.loss import cross_entropy_loss

    torch.manual_seed(42)
    found = []
    model: Any = Transformer(ModelConfig(**SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP)
        ids, labels = (torch.randint(0, SHAPE["vocab_size"], BATCH) for _ in range(2))
        loss = cross_entropy_loss(model(ids), labels) + AUX_LOSS_WEIGHT * model.get_moe_aux_loss()
        found.append([round(float(layer.mlp.expert_counts.max()) / ids.numel(), 2) for layer in model.layers.values()])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return found


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(row) for row in shares())
    print(f'{{"model": {json.dumps(SHAPE)}, "batch": {list(BATCH)}, "shares": [\n{rows}]}}')
