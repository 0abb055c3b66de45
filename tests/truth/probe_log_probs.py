"""The loss of LLaMA-Factory's rewrite: what its own method allocates and frees behind the head, step by step.

    python tests/truth/probe_log_probs.py CLONE > tests/truth/losses/log-probs-llamafactory-ff6d4d12.json

CLONE: a git directory of hiyouga/LLaMA-Factory. The method is read from `src/llamafactory/v1/core/base_trainer.py`
(compute_log_probs) at COMMIT, the model's own loss is transformers' ForCausalLMLoss, which it computes because the
labels are among its inputs. A CPU runs one step; its profiler gives allocations. Kept are signed bytes of whole logits
(two bytes an element and more), forward and backward apart. The forward begins with the logits, the backward ends with
their gradient. `shared`: the same of `sequence_parallel_loss` (`v1/plugins/model_plugins/parallelization/
sequence_parallel.py`), which ranks run that share sequences: two, over PyTorch's fake process group, behind the cut of
the inputs.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.loss.loss_utils import ForCausalLMLoss

COMMIT, FILE = "ff6d4d12", "src/llamafactory/v1/core/base_trainer.py"
SHARED = "src/llamafactory/v1/plugins/model_plugins/parallelization/sequence_parallel.py"
VOCAB, HIDDEN, RANKS = 4096, 8, 2
CASES = ((1, 64), (2, 64), (4, 32))


def method(clone: str) -> Any:
    text = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{FILE}"], capture_output=True, text=True,  # noqa: S607 - git
                          check=True).stdout
    trainer = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    found = next(node for node in trainer.body if getattr(node, "name", "") == "compute_log_probs")
    scope: dict[str, Any] = {"torch": torch, "F": F, **dict.fromkeys(("HFModel", "BatchInput", "ModelOutput"), Any),
                             "Tensor": torch.Tensor}
    exec(textwrap.dedent(ast.unparse(found)), scope)  # noqa: S102 - the method itself is what is measured
    return scope["compute_log_probs"]


class Model:
    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
        self.hidden = torch.randn(0)

    def __call__(self, labels: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
        logits = self.hidden @ self.weight.T
        return SimpleNamespace(loss=ForCausalLMLoss(logits=logits, labels=labels, vocab_size=VOCAB), logits=logits)


def events(run: Any, least: int) -> tuple[Any, list[int]]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    found = sorted((event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events()
                   if event.name() == "[memory]")
    return kept, [size for _, size in found if abs(size) >= least]


def measured(log_probs: Any, batch: int, seq: int) -> dict[str, Any]:
    model, trainer = Model(), SimpleNamespace(device="cpu", _uses_mrope=False)
    model.hidden = torch.randn(batch, seq, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    inputs = {"labels": torch.randint(0, VOCAB, (batch, seq)), "loss_weights": torch.ones(batch, seq)}
    least = 2 * batch * (seq - 1) * VOCAB

    def forward() -> torch.Tensor:
        weights = inputs["loss_weights"][..., 1:]
        found = log_probs(trainer, model, inputs)
        return (-found * weights).sum() / (weights.sum() + 1e-6)  # v1/trainers/sft_trainer.py compute_loss

    for _ in range(2):
        loss, made = events(forward, least)
        _, undone = events(loss.backward, least)
    return {"batch": batch, "seq": seq, "vocab": VOCAB, "forward": made, "backward": undone}


def shared_loss(clone: str) -> Any:
    """`sequence_parallel_loss` over a fake group of two ranks; its inputs lie where they are and are cut before."""
    text = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{SHARED}"], capture_output=True, text=True,  # noqa: S607 - git
                          check=True).stdout
    found = next(node for node in ast.parse(text).body if getattr(node, "name", "") == "sequence_parallel_loss")
    found.decorator_list = []
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    scope: dict[str, Any] = {
        "torch": torch, "F": F, "dist": dist, "ModelOutput": Any, "Dim": SimpleNamespace(CP="cp"),
        "DistributedInterface": lambda: SimpleNamespace(get_device_mesh=lambda dim: None),
        "padding_and_split_data": lambda inputs, mesh: inputs,
        "get_ulysses_sequence_parallel_group": lambda: dist.group.WORLD,
        "get_ulysses_sequence_parallel_world_size": dist.get_world_size,
        "get_ulysses_sequence_parallel_rank": dist.get_rank}
    exec(ast.unparse(found).replace("v.to(dist.get_rank(), non_blocking=True)", "v"), scope)  # noqa: S102 - upstream's own
    return scope["sequence_parallel_loss"]


def measured_of_ranks(loss_of: Any, batch: int, seq: int) -> dict[str, Any]:
    """`seq`: tokens of a sequence on one rank."""
    model = Model()
    model.hidden = torch.randn(batch, seq, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    inputs = {"labels": torch.randint(0, VOCAB, (batch, seq)), "loss_weights": torch.ones(batch, seq)}
    least = 2 * batch * (seq - 1) * VOCAB
    for _ in range(2):
        loss, made = events(lambda: loss_of(model, inputs), least)
        _, undone = events(loss.backward, least)
    return {"batch": batch, "seq": seq, "vocab": VOCAB, "ranks": RANKS, "forward": made, "backward": undone}


if __name__ == "__main__":
    own = method(sys.argv[1])
    rows = ",\n ".join(json.dumps(measured(own, *case)) for case in CASES)
    theirs = shared_loss(sys.argv[1])
    shared = ",\n ".join(json.dumps(measured_of_ranks(theirs, *case)) for case in CASES)
    print(f'{{"torch": "{torch.__version__}", "cases": [\n {rows}],\n "shared": [\n {shared}]}}')
