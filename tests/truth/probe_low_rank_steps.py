"""Whole steps with GaLore and APOLLO on one process, after backward and layer by layer inside it.

    python tests/truth/probe_low_rank_steps.py > tests/truth/optimizers/low-rank-steps-galore-1.0-apollo-1.0.3.json

The small Llama of `probe_optimizer.py` runs two steps with real tensors on the CPU, with whole layers recomputed. The
optimizer is transformers' (`probe_low_rank.py`), which makes new projectors in each step. Attention of grouped heads in
fp32 takes torch's plain operators, as on CUDA ([Note: attention without a kernel] in
`simcore/operators/shared/math_attention.py`); a CPU has a flash kernel for it, which keeps less. `peak`, `end`: bytes
of the second step, without numbers that an optimizer makes and the seeds that APOLLO draws on the host.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from oracle.steps import models
from oracle.steps.measured_steps import two_measured_steps
from oracle.steps.setup import checkpoint
from oracle.steps.tracker import Tracker
from probe_low_rank import optimizer_of
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPE = {"vocab_size": 512, "num_hidden_layers": 4}
CASES: dict[str, dict[str, Any]] = {
    f"{name} {dtype} {'tied ' * tied}{'layerwise' * early}": {
        "preset": "llama-tiny", "overrides": {**SHAPE, "tie_word_embeddings": tied}, "dtype": dtype,
        "optim": f"{name}_adamw{'_layerwise' * early}", "targets": targets,
        "args": {"rank": 16, "update_proj_gap": 1}}
    for name, targets in (("galore", "all-linear"), ("apollo", ["attn", "mlp"]))
    for dtype in ("bfloat16", "float32") for tied in (False, True) for early in (False, True)}


def measured(case: dict[str, Any]) -> dict[str, int]:
    """Peak and end of the second step."""
    torch.manual_seed(0)
    model = models.build_meta(case["preset"], case["overrides"])
    for p in model.parameters():
        p.data = p.data.to(getattr(torch, case["dtype"]))
    model.train()
    checkpoint(model, models.decoder_layers(model), {"ac": "layer"})
    tracker = Tracker()
    kernel = SDPBackend.MATH if case["dtype"] == "float32" else SDPBackend.FLASH_ATTENTION
    with tracker, sdpa_kernel(kernel):
        model.to_empty(device="cpu")
        model.tie_weights()
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.02)
        optimizer = optimizer_of(case, model)
        steps = two_measured_steps(tracker, optimizer, lambda tokens, labels: model(
            input_ids=tokens, labels=labels, use_cache=False).loss, SHAPE["vocab_size"])
    return steps.found()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"torch": torch.__version__, "cases": rows}, indent=1))
