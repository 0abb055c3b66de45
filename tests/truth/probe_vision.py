"""Measures what vision towers and their ends allocate and free, event by event, in one training step.

    python tests/truth/probe_vision.py > tests/truth/tape/vision-torch-2.13.0-transformers-5.23.0.json

Real models of transformers (`sees.py`) run on a CPU in bf16, small, with a frozen tower; births and deaths of storages
are logged by `simcore/verify/real/steps/tracker.py` and cut at the borders of modules. What kernels allocate inside
themselves on a GPU is not in the log: `masked_scatter`'s prefix sum and mask, and the indices of `masked_select`.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from oracle import logs
from oracle.steps import delta
from oracle.steps.tracker import Tracker

delta.put_in_place()  # the decoder of Qwen 3.5, of which nothing is told

from sees import FAMILIES  # noqa: E402

HERE = Path(__file__).resolve().parent


def built(case: dict[str, Any]) -> Any:
    """The model of a case; `frozen`: prefixes of names without gradients."""
    model = FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16)
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    return model


def borders(model: Any, tracker: Tracker, case: dict[str, Any]) -> None:
    """Marks where each part of the tower begins, and the decoder."""
    inner = model.model
    inner.language_model.embed_tokens.register_forward_pre_hook(lambda *_: tracker.mark("embedding"))
    for name, module in FAMILIES[case["fields"]["model_type"]].parts(inner).items():
        module.register_forward_pre_hook(lambda *_, name=name, **__: tracker.mark(name), with_kwargs=True)
    inner.language_model.register_forward_pre_hook(lambda *_, **__: tracker.mark("decoder"), with_kwargs=True)


def scattered(model: Any, tracker: Tracker) -> None:
    """Marks where the gradient of the merged sequence is whole, and where that of the embedding's output is."""
    def begin(grad: torch.Tensor) -> None:
        tracker.mark("backward projector")

    def watch(_module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["inputs_embeds"].requires_grad:
            kwargs["inputs_embeds"].register_hook(begin)

    def end(_module: Any, _args: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda grad: tracker.mark("backward embedding"))

    model.model.language_model.register_forward_pre_hook(watch, with_kwargs=True)
    model.model.language_model.embed_tokens.register_forward_hook(end)


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every section of the second step."""
    torch.manual_seed(0)
    model = built(case)
    given = FAMILIES[case["fields"]["model_type"]].inputs(case)
    tracker = Tracker()
    borders(model, tracker, case)
    scattered(model, tracker)
    with tracker:
        for parameter in (*model.parameters(), *model.buffers(), *given.values()):
            tracker.number_of(parameter)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            gc.collect()
            tracker.phase = "fwd"
            start = len(tracker.events)
            out = model(**given, use_cache=False)
            tracker.mark("returned")
            tracker.phase = "bwd"
            out.logits.float().sum().backward()
            tracker.mark("over")
            del out
            gc.collect()
            tracker.mark("end")
    return {"sections": cut(tracker, start)}


def cut(tracker: Tracker, start: int) -> list[dict[str, Any]]:
    """Sections of the last step from mark to mark, each with its events as signed bytes."""
    marks = [(place, label) for place, label in tracker.markers if place >= start]
    ends = [place for place, _ in marks[1:]] + [len(tracker.events)]
    return [{"at": label, "events": [change for _, change in tracker.events[place:end]]}
            for (place, label), end in zip(marks, ends, strict=True)]


if __name__ == "__main__":
    logs.main(__file__, measured, HERE / "tape" / "cases-vision.json")
