"""States and temporaries of GaLore's and APOLLO's steps, by their own code, as transformers' Trainer makes them.

    PYTHONPATH=... python tests/truth/probe_low_rank.py < cases > rows     (one JSON object a line)

galore-torch 1.0, apollo-torch 1.0.3. `Trainer.get_optimizer_cls_and_kwargs` chooses the parameters and makes the
optimizer of a small model of transformers, with real tensors on the CPU; gradients are drawn. Every storage that an
operator returns is logged (`oracle/steps/tracker.py`), so what a kernel allocates inside, such as the workspace of an
SVD, is not. Left out are the seed that APOLLO draws on the host and tensors without dimensions, one number each.

`states`: bytes of the storages that each parameter's states keep alive, by the name of the state. `steps`: for each of
three steps the most bytes above those before it, and the bytes that it leaves. `error`: what is raised instead.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from itertools import accumulate, pairwise
from typing import Any

import torch
from oracle.steps.tracker import Tracker
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

STEPS = 3


def model_of(case: dict[str, Any]) -> torch.nn.Module:
    """The small model of a case, in its dtype, with PEFT's adapters if it names a rank of them."""
    config = AutoConfig.for_model(case.get("family", "llama"), **case["model"], use_cache=False)
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, case["dtype"]))
    if case.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=case["lora"], target_modules=["q_proj", "v_proj"]),
                               autocast_adapter_dtype=False)
    return model


def optimizer_of(case: dict[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """As `Trainer.create_optimizer` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, optim=case["optim"], optim_target_modules=case["targets"], use_cpu=True,
            optim_args=",".join(f"{key}={value}" for key, value in case["args"].items()), report_to="none")
    made, given = Trainer.get_optimizer_cls_and_kwargs(args, model)
    groups = given.pop("params")
    return made(given.pop("optimizer_dict", groups), **given)


def forget(tracker: Tracker) -> None:
    """Forgets the events of storages of APOLLO's seeds, which a GPU's memory does not hold, and single numbers."""
    left_out = {number for number, info in tracker.info.items() if "randint" in info["op"] or not info["shape"]}
    tracker.events = [event for event in tracker.events if event[0] not in left_out]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors of a state: itself, or those of a projector."""
    if isinstance(value, torch.Tensor):
        return [value]
    matrix = getattr(value, "ortho_matrix", None)
    return matrix if isinstance(matrix, list) else [matrix] if isinstance(matrix, torch.Tensor) else []


def states_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, int]]:
    """Bytes of the storages of each parameter's states."""
    found = {}
    for name, parameter in model.named_parameters():
        states = {key: sum(t.untyped_storage().nbytes() for t in tensors_in(value))
                  for key, value in optimizer.state.get(parameter, {}).items()}
        found[name] = {key: size for key, size in states.items() if size}
    return found


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """What three steps take and leave."""
    torch.manual_seed(0)
    model = model_of(case)
    optimizer = optimizer_of(case, model)
    drawn = [{p: torch.randn(p.shape).to(p.dtype) for p in model.parameters() if p.requires_grad}
             for _ in range(STEPS)]
    tracker, at = Tracker(), []
    with tracker:
        for known in (*model.parameters(), *(grad for grads in drawn for grad in grads.values())):
            tracker.number_of(known)
        at.append(len(tracker.events))
        for grads in drawn:
            for parameter, grad in grads.items():
                parameter.grad = grad
            optimizer.step()
            gc.collect()
            forget(tracker)
            at.append(len(tracker.events))
            for parameter in grads:
                parameter.grad = None
    running = [0, *accumulate(change for _, change in tracker.events)]
    return {"states": states_of(model, optimizer),
            "steps": [{"peak": max(running[first:last + 1]) - running[first], "left": running[last] - running[first]}
                      for first, last in pairwise(at)]}


def answered(case: dict[str, Any]) -> dict[str, Any]:
    """The case with what was found, or the error that it raised."""
    try:
        return case | measured(case)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, AttributeError) as error:
        return case | {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None  # GaLore's 8-bit optimizer waits for a GPU's kernels
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line))), flush=True)
