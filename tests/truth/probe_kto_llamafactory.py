"""KTO of LLaMA-Factory: what its own methods allocate and free of whole logits, from the head to their gradient.

    python tests/truth/probe_kto_llamafactory.py CLONE TRL [SEED COUNT] > \
        tests/truth/losses/kto-llamafactory-ff6d4d12.json

CLONE, the head and the profile: as `probe_preference_llamafactory.py`; TRL: `trl/trainer/kto_trainer.py` of TRL 0.24.0,
whose kto_loss is called. Methods of CustomKTOTrainer (`src/llamafactory/train/kto/trainer.py`) run as they are at
COMMIT. Kept are signed bytes of whole logits in 16 bits and more in five parts: from the policy's forward until its
mismatched one, from there until the reference's, from there until its mismatched one, from there until the loss is
there, and backward.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import warnings
from ast import unparse
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Optional

import torch
from probe_preference_llamafactory import COMMIT, HIDDEN, UTILS, VOCAB, Policy, function
from torch.profiler import ProfilerActivity, profile, record_function

TRAINER = "src/llamafactory/train/kto/trainer.py"
METHODS = ("forward", "concatenated_forward", "compute_reference_log_probs", "get_batch_loss_metrics")
CASES = tuple({"batch": batch, "seq": seq, "mixed": mixed, "chosen": chosen}
              for batch, seq, chosen in ((1, 64, 1), (2, 32, 1), (3, 48, 1)) for mixed in (True, False))


def methods(clone: str, trl: str) -> dict[str, Any]:
    texts = [subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{name}"], capture_output=True, text=True,  # noqa: S607 - git
                            check=True).stdout for name in (TRAINER, UTILS)]
    wanted = [*((texts[0], name) for name in METHODS), (texts[1], "get_batch_logps"), (texts[1], "nested_detach"),
              (Path(trl).read_text(encoding="utf-8"), "kto_loss")]
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "nullcontext": nullcontext, "IGNORE_INDEX": -100,
                             "Any": Any, "Optional": Optional, "Literal": Literal}
    from collections.abc import Mapping
    scope["Mapping"] = Mapping
    for text, name in wanted:
        code = "from __future__ import annotations\n" + textwrap.dedent(unparse(function(text, name)))
        exec(code, scope)  # noqa: S102 - the methods are what is measured
    return scope


def trainer(scope: dict[str, Any]) -> Any:
    made = type("Trainer", (), {name: scope[name] for name in (*METHODS, "kto_loss")})()
    vars(made).update(ftx_gamma=0.0, ref_model=None, calculate_KL=True, loss_type="kto", beta=0.1, desirable_weight=1.0,
                      undesirable_weight=1.0, accelerator=SimpleNamespace(
                          device="cpu", unwrap_model=lambda model: model, gather_for_metrics=lambda value: value))
    return made


def measured(scope: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The case, and what its loss allocates and frees."""
    batch, seq = case["batch"], case["seq"]
    model, made = Policy(mixed=case["mixed"]), trainer(scope)
    model.hidden = torch.randn(batch, seq, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(2):
        ids = torch.randint(0, VOCAB, (batch, seq))
        given = {f"{prefix}{name}": ids.clone() for prefix in ("", "kl_") for name in ("input_ids", "labels")}
        given |= {f"{prefix}attention_mask": torch.ones_like(ids) for prefix in ("", "kl_")}
        given["kto_tags"] = torch.arange(batch) < case["chosen"]
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            loss, _metrics = made.get_batch_loss_metrics(model, given)
            with record_function("backward"):
                loss.backward()
    events = profiler.profiler.kineto_results.events()
    starts = [*sorted(one.start_ns() for one in events if one.name() in ("forward of a model", "backward")), 2**62]
    sizes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    parts = [[size for at, size in sizes if begin <= at < end and abs(size) >= 2 * (seq - 1) * VOCAB]
             for begin, end in pairwise(starts)]
    return {**case, "vocab": VOCAB, "passes": parts[:-1], "backward": parts[-1]}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Cases by chance."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        batch = draw.randint(1, 6)
        found.append({"batch": batch, "seq": draw.randint(20, 200), "mixed": draw.random() < 0.5,
                      "chosen": draw.randint(0, batch)})
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    own = methods(*sys.argv[1:3])
    cases = drawn(int(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 3 else CASES
    rows = ",\n ".join(json.dumps(measured(own, case)) for case in cases)
    print(f'{{"torch": "{torch.__version__}", "llamafactory": "{COMMIT}", "trl": "0.24.0", "cases": [\n {rows}]}}')
