"""What an optimizer that runs inside backward leaves of a step's peak, on one process, without a wrapper.

    python tests/truth/probe_optimizer.py > tests/truth/ddp/optimizer-torch-2.13.0.json

A small Llama in bf16 runs two steps on fake tensors (`oracle/`): foreach AdamW after backward, or one a parameter that
steps and drops the gradient in a hook (`register_post_accumulate_grad_hook`). `peak`, `end`: bytes of the second step.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import torch
from oracle.steps import models
from oracle.steps.measured_steps import two_measured_steps
from oracle.steps.setup import StepsInBackward, checkpoint, make_optim
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPE = {"vocab_size": 512, "num_hidden_layers": 8}
CASES: dict[str, dict[str, Any]] = {
    f"{'tied ' * tied}{'in backward' if early else 'after it'}": {
        "preset": "llama-tiny", "overrides": {**SHAPE, "tie_word_embeddings": tied}, "optimizer_in_bwd": early}
    for tied in (False, True) for early in (False, True)}


def measured(case: dict[str, Any]) -> dict[str, int]:
    """Peak and end of the second step; the step counters of Adam, on a GPU in host memory, are left out."""
    model = models.build_meta(case["preset"], case["overrides"])
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16)
    model.train()
    checkpoint(model, models.decoder_layers(model), {"ac": "layer"})
    tracker = Tracker()
    with FakeTensorMode(allow_non_fake_inputs=True), tracker:
        model.to_empty(device="cpu")
        model.tie_weights()
        gc.collect()
        early = case["optimizer_in_bwd"]
        optimizer = StepsInBackward(model, tracker) if early else make_optim(
            model, {"optim": "adamw_foreach", "optim_groups": "one"})
        found = two_measured_steps(tracker, optimizer, lambda tokens, labels: model(
            input_ids=tokens, labels=labels, use_cache=False).loss, SHAPE["vocab_size"]).found()
        counters = 4 * len(list(model.parameters()))
    return {"peak": found["peak"] - counters, "end": found["end"] - counters}


if __name__ == "__main__":
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"torch": torch.__version__, "cases": rows}, indent=1))
