"""Measures whole steps of small Gemma 3 models with a frozen vision tower that nemo-automodel 0.7.0 wraps.

    python tests/truth/probe_automodel_vision.py > tests/truth/tape/automodel-vision-0.7.0-torch-2.13.0.json

As `probe_automodel_step.py`, with Automodel's own `apply_parameter_freezing` by a recipe's `freeze_config`, and the
model's output held until backward is over, as `recipes/vlm/finetune.py` holds it. Fake tensors have no values, so that
these are stand-ins: the check that as many tokens as features are there does nothing, and the gradient of
`masked_scatter`'s source has the source's shape (`masked_select`). `units`: the names of wrapped modules, each with the
elements that its group of parameters holds in all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_step as steps
import torch
import torch.distributed as dist
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.utils.model_utils import apply_parameter_freezing
from oracle.drawn_automodel import adapted
from oracle.steps.setup import tag_shards
from oracle.steps.tracker import Tracker
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma3 import modeling_gemma3

HERE = Path(__file__).resolve().parent
FIELDS: dict[str, Any] = json.loads((HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))[0]["fields"]
FROZEN = {"freeze_vision_tower": True, "freeze_language_model": False}
CASES: dict[str, dict[str, Any]] = {
    "gemma3": {"freeze": FROZEN, "images": 1}, "gemma3, four images": {"freeze": FROZEN, "images": 4},
    "gemma3, large images": {"freeze": FROZEN, "images": 4, "seq": 128, "image_size": 448},
    "gemma3, text frozen": {"freeze": {**FROZEN, "freeze_language_model": True}, "images": 1},
    "gemma3, adapted": {"freeze": FROZEN, "images": 1, "lora": 8, "exclude_modules": ["*vision*", "*lm_head*"]},
}
IMAGE_TOKEN = 500


class Scattered(torch.autograd.Function):
    """`masked_scatter` whose source gets a gradient of its own shape."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.shape = source.shape
        return torch.ops.aten.masked_scatter(x, mask, source)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        x, _, source = ctx.needs_input_grad
        made = grad.masked_fill(mask, 0) if x else None
        return made, None, grad.new_empty(ctx.shape) if source else None


def scattered(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """A function, so that it is a method of tensors."""
    return Scattered.apply(x, mask, source)


def built(case: dict[str, Any]) -> Any:
    """The model on the meta device; `image_size` of a case is that of its tower."""
    fields = {name: {k: v for k, v in FIELDS[name].items() if k != "model_type"} for name in (
        "text_config", "vision_config")}
    fields["vision_config"] |= {k: case[k] for k in ("image_size",) if k in case}
    config = Gemma3Config(**{**FIELDS, **fields}, image_token_index=IMAGE_TOKEN, attn_implementation="eager")
    with torch.device("meta"):
        return Gemma3ForConditionalGeneration(config).to(torch.bfloat16)


def micro_step(model: Any, tr: Tracker, case: dict[str, Any], *, first: bool) -> None:
    """One microbatch; the output lives as long as this function."""
    tr.phase = "fwd"
    side, seq = case.get("image_size", FIELDS["vision_config"]["image_size"]), case.get("seq", 512)
    given = {"input_ids": torch.randint(0, 100, (1, seq)), "labels": torch.randint(0, 100, (1, seq)),
             "pixel_values": torch.empty(case["images"], 3, side, side)}
    for one in given.values():
        tr.tag(one, "input")
    labels = given.pop("labels")
    out = model(**given, use_cache=False)
    loss = MaskedCrossEntropy()(logits=out.logits, labels=labels)
    if first:
        tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    tr.mark("bwd:end")


def units(model: Any) -> list[list[Any]]:
    """Wrapped modules, root first, each with the elements of its own group of parameters."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            size = sum(p.sharded_param.numel() for p in group.fsdp_params) if group else 0
            found.append([name, size])
    return found


def measure(case: dict[str, Any]) -> dict[str, Any]:
    model = built(case).train()
    adapted(model, case)
    apply_parameter_freezing(model, case["freeze"])
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(), world_size=8)
    model = parallelize_model(model, mesh)
    wrapped = units(model)
    halves, traffic = steps.two_steps(model, lambda tr, first: micro_step(model, tr, case, first=first))
    return {"case": case, "units": wrapped, **halves, "traffic": traffic}


def main() -> str:
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    return dense.lines({name: measure(CASES[name]) for name in sys.argv[1:] or list(CASES)})


def stand_in() -> None:
    steps.stand_in()
    modeling_gemma3.torch_compilable_check = lambda *_: None
    torch.Tensor.masked_scatter = scattered  # type: ignore[assignment]


if __name__ == "__main__":
    stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
