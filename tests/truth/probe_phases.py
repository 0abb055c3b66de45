"""What evaluation, generation and the merging of adapters allocate: a small Llama on one process.

    python tests/truth/probe_phases.py > tests/truth/phases/transformers-5.23.json

Runs on a CPU, after one training step of real tensors with AdamW, whose states are there meanwhile. Models are those of
`probe_qlora.py`. `evaluation`: highest bytes of a pass without gradients, with its loss; `logits`: the same in
transformers' `Trainer.evaluate` with `compute_metrics`, which keeps the logits of all batches, until it moves them to
the host; `generation`: of `generate`, one token after the other, with its cache; `merge`: of PEFT's `merge_and_unload`,
before the step's states are dropped, `merged`: what is left of it. Adam's counters and tables of bitsandbytes are left
out, as there.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import bitsandbytes.autograd._functions as functions
import peft
import torch
import transformers
from bitsandbytes.nn import modules
from oracle.steps.tracker import Tracker
from probe_qlora import SHAPE, Autocast, Ops, built, rest_of
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import EvalLoopContainer

SOME = ["q_proj", "v_proj", "down_proj"]
CASES: dict[str, dict[str, Any]] = {
    "full": {"full": True, "narrow": True}, "full, autocast": {"full": True, "autocast": True},
    "full, replayed in training": {"full": True, "narrow": True, "recompute": True},
    "qlora": {"targets": SOME}, "qlora, autocast": {"targets": SOME, "kbit": True, "autocast": True,
                                                    "adapters": "fp32"},
    "lora": {"targets": SOME, "plain": True}, "lora, adapters in fp32": {"targets": SOME, "plain": True,
                                                                        "adapters": "fp32"}}
BATCH, SEQ, NEW, BATCHES = 4, 64, 8, 3


def model_of(case: dict[str, Any]) -> Any:
    """The model of the case, in bf16 if it is `narrow`; `plain`: PEFT adapts a base that is not packed."""
    model = built(case | {"full": case.get("full") or case.get("plain")})
    if case.get("narrow") or case.get("plain"):
        model = model.to(torch.bfloat16)
    if case.get("plain"):
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=case["targets"]),
                                    autocast_adapter_dtype=case.get("adapters") == "fp32")
    return model.train()


class Bytes:
    """Bytes that are alive, by the tracker's events, since the model rests."""

    def __init__(self, tracker: Tracker, model: Any) -> None:
        self.tracker, self.known = tracker, rest_of(model)
        for p in (*model.parameters(), *model.buffers()):
            tracker.number_of(p)
        gc.collect()
        self.more = self.known - sum(change for _, change in tracker.events)

    def highest(self, work: Callable[[], Any]) -> int:
        """The most while `work` runs."""
        gc.collect()
        start = len(self.tracker.events)
        result = work()
        running = [0, *accumulate(change for _, change in self.tracker.events)]
        del result
        gc.collect()
        return max(running[start:]) + self.more

    def now(self) -> int:
        gc.collect()
        return sum(change for _, change in self.tracker.events) + self.more


def _loss(model: Any, case: dict[str, Any]) -> Any:
    tokens, labels = (torch.randint(0, SHAPE["vocab_size"], (BATCH, SEQ)) for _ in range(2))
    with Autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
        return model(input_ids=tokens, labels=labels, use_cache=False).loss


def evaluated(model: Any, case: dict[str, Any]) -> None:
    with torch.no_grad():
        _loss(model.eval(), case)


class Stop(Exception):
    """Logits would go to the host."""


def kept(model: Any, case: dict[str, Any]) -> None:
    """`Trainer.evaluate` until it has all logits."""
    data = [{"input_ids": [1] * SEQ, "labels": [1] * SEQ}] * (BATCH * BATCHES)

    def stop(self: Any) -> None:
        raise Stop

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, use_cpu=True, per_device_eval_batch_size=BATCH, report_to=[],
                                 bf16=case.get("autocast", False), disable_tqdm=True)
        trainer = Trainer(model, args, eval_dataset=data, compute_metrics=lambda found: {})
        old, EvalLoopContainer.to_cpu_and_numpy = EvalLoopContainer.to_cpu_and_numpy, stop
        try:
            trainer.evaluate()
        except Stop:
            pass
        finally:
            EvalLoopContainer.to_cpu_and_numpy = old


def generated(model: Any, case: dict[str, Any]) -> None:
    tokens = torch.randint(0, SHAPE["vocab_size"], (BATCH, SEQ))
    with torch.no_grad(), Autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
        model.eval().generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW,
                              min_new_tokens=NEW, do_sample=False, use_cache=True, pad_token_id=0)


def measured(case: dict[str, Any]) -> dict[str, int]:
    model = model_of(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    functions.torch = type("torch", (), {**vars(torch), "ops": Ops})  # type: ignore[attr-defined]
    torch.is_autocast_enabled = lambda *_: case.get("autocast", False)
    tracker = Tracker()
    with tracker:
        seen = Bytes(tracker, model)
        _loss(model, case).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.more -= 4 * len(trained)
        found = {"rest": seen.now(), "evaluation": seen.highest(lambda: evaluated(model, case)),
                 "logits": seen.highest(lambda: kept(model, case)),
                 "generation": seen.highest(lambda: generated(model, case))}
        if not case.get("full"):
            found["merge"] = seen.highest(model.merge_and_unload)
    return found


if __name__ == "__main__":
    modules.has_avx512bf16 = lambda: False  # which packs again in evaluation, for CPUs alone
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"transformers": transformers.__version__, "peft": peft.__version__, "torch": torch.__version__,
                      "batch": BATCH, "seq": SEQ, "new": NEW, "batches": BATCHES, "cases": rows}, indent=1))
