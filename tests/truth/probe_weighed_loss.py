"""Losses of LLaMA-Factory that weigh each token (DFT, EAFT) beside transformers' own: whole logits, step by step.

    python tests/truth/probe_weighed_loss.py CLONE > tests/truth/losses/weighed-llamafactory-ff6d4d12.json

CLONE: a git directory of hiyouga/LLaMA-Factory. Functions are read from `src/llamafactory/train/trainer_utils.py` at
COMMIT. The model runs under autocast as accelerate has it, so that logits leave it in fp32; its own loss is inside, the
others get the logits. A CPU runs one step; its profiler gives allocations. Kept are signed bytes of whole logits (two
bytes an element and more); a clone that autocast makes of a weight is smaller.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import Any, Optional

import torch
from accelerate.utils.operations import convert_outputs_to_fp32
from probe_log_probs import events
from transformers.loss.loss_utils import ForCausalLMLoss

COMMIT, FILE = "ff6d4d12", "src/llamafactory/train/trainer_utils.py"
NAMES = ("dft_loss_func", "_dft_cross_entropy", "eaft_loss_func", "_eaft_cross_entropy")
VOCAB, HIDDEN = 4096, 8
CASES = ((1, 64), (2, 64))


def functions(clone: str) -> dict[str, Any]:
    text = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{FILE}"], capture_output=True, text=True,  # noqa: S607 - git
                          check=True).stdout
    scope: dict[str, Any] = {"torch": torch, "Optional": Optional}
    for node in ast.parse(text).body:
        if getattr(node, "name", "") in NAMES:
            exec(ast.unparse(node), scope)  # noqa: S102 - the functions themselves are what is measured
    return {"dft": scope["dft_loss_func"], "eaft": scope["eaft_loss_func"]}


def measured(name: str, weighed: Any, batch: int, seq: int) -> dict[str, Any]:
    weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN))
    hidden = torch.randn(batch, seq, HIDDEN, requires_grad=True)
    labels = torch.randint(0, VOCAB, (batch, seq))

    def model() -> Any:
        logits = torch.nn.functional.linear(hidden, weight)
        if weighed is not None:
            return {"logits": logits}
        return {"logits": logits, "loss": ForCausalLMLoss(logits=logits, labels=labels, vocab_size=VOCAB)}

    prepared = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model))

    def compute_loss() -> torch.Tensor:
        outputs = prepared()
        return outputs["loss"] if weighed is None else weighed(outputs, labels, torch.tensor(batch * seq))

    for _ in range(2):
        loss, made = events(compute_loss, 2 * batch * seq * VOCAB)
        _, undone = events(loss.backward, 2 * batch * seq * VOCAB)
    return {"loss": name, "batch": batch, "seq": seq, "vocab": VOCAB, "forward": made, "backward": undone}


if __name__ == "__main__":
    found: dict[str, Any] = {"hf": None, **functions(sys.argv[1])}
    rows = ",\n ".join(json.dumps(measured(name, one, *case)) for name, one in found.items() for case in CASES)
    print(f'{{"torch": "{torch.__version__}", "cases": [\n {rows}]}}')
