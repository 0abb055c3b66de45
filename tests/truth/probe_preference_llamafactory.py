"""DPO of LLaMA-Factory: what its own methods allocate and free of whole logits, from the head to their gradient.

    python tests/truth/probe_preference_llamafactory.py CLONE TRL > \
        tests/truth/losses/preference-llamafactory-ff6d4d12.json

CLONE: a git directory of hiyouga/LLaMA-Factory; TRL: `trl/trainer/dpo_trainer.py` of TRL 0.24.0, the last release that
it takes, whose dpo_loss it calls. Methods of CustomDPOTrainer (`src/llamafactory/train/dpo/trainer.py`) run as they are
at COMMIT, around a head under accelerate's mixed precision (convert_outputs_to_fp32) or without. A CPU runs one step;
its profiler gives allocations. Kept are signed bytes of whole logits in 16 bits and more, in three parts: from the
policy's forward until the reference's (if the loss has one), from there until the loss is there, and backward.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from transformers.modeling_outputs import CausalLMOutput

COMMIT, TRAINER, UTILS = "ff6d4d12", "src/llamafactory/train/dpo/trainer.py", "src/llamafactory/train/trainer_utils.py"
METHODS = ("concatenated_forward", "compute_reference_log_probs", "get_batch_loss_metrics", "compute_preference_loss",
           "odds_ratio_loss", "simpo_loss")
VOCAB, HIDDEN = 4096, 8
CASES = tuple((loss, pairs, seq, mixed) for loss in ("sigmoid", "orpo", "simpo") for pairs, seq in ((1, 64), (2, 32))
              for mixed in (True, False))


def function(text: str, name: str) -> ast.FunctionDef:
    found = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name)
    found.decorator_list = []
    return found


def methods(clone: str, trl: str) -> dict[str, Any]:
    texts = [subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{name}"], capture_output=True, text=True,  # noqa: S607 - git
                            check=True).stdout for name in (TRAINER, UTILS)]
    wanted = [*((texts[0], name) for name in METHODS), (texts[1], "get_batch_logps"), (texts[1], "nested_detach"),
              (Path(trl).read_text(encoding="utf-8"), "dpo_loss")]
    scope: dict[str, Any] = {"torch": torch, "F": F, "nullcontext": nullcontext, "IGNORE_INDEX": -100, "Any": Any,
                             "Mapping": Mapping, "Optional": Any, "Literal": Any, "FDivergenceType":
                             SimpleNamespace(ALPHA_DIVERGENCE="alpha", JS_DIVERGENCE=SimpleNamespace(value="js"))}
    for text, name in wanted:
        if f"def {name}(" in text:
            code = "from __future__ import annotations\n" + textwrap.dedent(ast.unparse(function(text, name)))
            exec(code, scope)  # noqa: S102 - the methods are what is measured
    return scope


class Policy(nn.Module):
    def __init__(self, *, mixed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16), requires_grad=False)
        self.hidden = torch.randn(0)
        self.forward = self._wide if mixed else self._plain  # type: ignore[method-assign]

    def _plain(self, **_: Any) -> CausalLMOutput:
        with record_function("forward of a model"):
            return CausalLMOutput(logits=self.hidden @ self.weight.T)

    def _wide(self, **given: Any) -> Any:
        return convert_outputs_to_fp32(self._plain)(**given)

    def disable_adapter(self) -> Any:
        return nullcontext()


def trainer(scope: dict[str, Any], loss: str) -> Any:
    own = {name: scope[name] for name in (*METHODS, "dpo_loss")}
    made = type("Trainer", (), own)()
    vars(made).update(finetuning_args=SimpleNamespace(use_ref_model=loss == "sigmoid"), loss_type=loss, beta=0.1,
                      ld_alpha=None, ref_model=None, ftx_gamma=0.0, bco_gemma=0.0, simpo_gamma=0.5, label_smoothing=0.0,
                      f_divergence_type="reverse_kl", f_divergence_params=None, reference_free=False,
                      accelerator=SimpleNamespace(device="cpu", unwrap_model=lambda model: model))
    return made


def measured(scope: dict[str, Any], loss: str, pairs: int, seq: int, *, mixed: bool) -> dict[str, Any]:
    model, made = Policy(mixed=mixed), trainer(scope, loss)
    model.hidden = torch.randn(2 * pairs, seq, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(2):
        ids = torch.randint(0, VOCAB, (2 * pairs, seq))
        batch = {"input_ids": ids, "labels": ids.clone()}
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            found, _metrics = made.get_batch_loss_metrics(model, batch)
            with record_function("backward"):
                found.backward()
    events = profiler.profiler.kineto_results.events()
    starts = [*sorted(one.start_ns() for one in events if one.name() in ("forward of a model", "backward")), 2**62]
    sizes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    parts = [[size for at, size in sizes if begin <= at < end and abs(size) >= 4 * pairs * (seq - 1) * VOCAB]
             for begin, end in pairwise(starts)]
    names = ("policy", "reference", "backward") if len(parts) == 3 else ("policy", "backward")
    return {"loss": loss, "pairs": pairs, "seq": seq, "vocab": VOCAB, "mixed": mixed,
            **dict(zip(names, parts, strict=True))}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = methods(*sys.argv[1:3])
    rows = ",\n ".join(json.dumps(measured(found, *case[:3], mixed=case[3])) for case in CASES)
    print(f'{{"torch": "{torch.__version__}", "llamafactory": "{COMMIT}", "trl": "0.24.0", "cases": [\n {rows}]}}')
