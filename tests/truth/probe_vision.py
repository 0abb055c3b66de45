"""Measures what Gemma 3's vision tower and projector allocate and free, event by event, in one training step.

    python tests/truth/probe_vision.py > tests/truth/tape/vision-torch-2.13.0-transformers-5.23.0.json

The real `Gemma3ForConditionalGeneration` of transformers runs on a CPU in bf16, small, with eager attention and a
frozen tower; births and deaths of storages are logged by `simcore/verify/real/steps/tracker.py` and cut at the borders
of modules. What kernels allocate inside themselves on a GPU is not in the log: `masked_scatter`'s prefix sum and mask,
and the indices of `masked_select`.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from oracle import logs
from oracle.steps.tracker import Tracker
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

HERE = Path(__file__).resolve().parent
IMAGE_TOKEN = 500


def built(case: dict[str, Any]) -> Any:
    """The model of a case; `frozen`: prefixes of names without gradients."""
    fields = {name: dict(case["fields"][name]) for name in ("text_config", "vision_config")}
    for part in fields.values():
        part.pop("model_type", None)
    config = Gemma3Config(**{**case["fields"], **fields, "image_token_index": IMAGE_TOKEN}, attn_implementation="eager")
    model = Gemma3ForConditionalGeneration(config).to(torch.bfloat16)
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    return model


def borders(model: Any, tracker: Tracker) -> None:
    """Marks where each part of the tower begins, and the decoder."""
    inner, tower = model.model, model.model.vision_tower
    parts = {"patches": tower.embeddings, **{f"layer {i}": layer for i, layer in enumerate(tower.encoder.layers)},
             "norm": tower.post_layernorm, "projector": inner.multi_modal_projector}
    inner.language_model.embed_tokens.register_forward_pre_hook(lambda *_: tracker.mark("embedding"))
    for name, module in parts.items():
        module.register_forward_pre_hook(lambda *_, name=name: tracker.mark(name))
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
    batch, seq, images = case["batch"], case["seq"], case["images"]
    vision = case["fields"]["vision_config"]
    tokens = case["fields"]["mm_tokens_per_image"]
    ids = torch.full((batch, seq), 7)
    ids[:, 1:1 + tokens * images] = IMAGE_TOKEN
    pixels = torch.rand(batch * images, 3, vision["image_size"], vision["image_size"])
    tracker = Tracker()
    borders(model, tracker)
    scattered(model, tracker)
    types = (ids == IMAGE_TOKEN).long()
    with tracker:
        for parameter in (*model.parameters(), *model.buffers(), ids, pixels, types):
            tracker.number_of(parameter)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            gc.collect()
            tracker.phase = "fwd"
            start = len(tracker.events)
            out = model(input_ids=ids, pixel_values=pixels, token_type_ids=types, use_cache=False)
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
