"""Measures steps of small models that read images under PEFT's adapters: checkpointed as transformers does it, or not.

    python tests/truth/probe_vision_adapted.py > tests/truth/tape/vision-adapted-torch-2.13.0-transformers-5.23.0.json

Models of `sees.py` on a CPU, parameters in bf16; adapters of the language model alone, by a pattern as PEFT matches it,
in fp32, so that forward runs under autocast. Autocast casts what LayerNorm and powers get to fp32, as CUDA's does. Each
case has sections of the second step: forward between the borders of the tower's parts; `backward`: of the tower as one.
`peaks`: bytes above what is there before, in forward and in backward. `trained`: number of adapters' matrices.
"""

from __future__ import annotations

import gc
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import peft
import torch
from oracle import logs
from oracle.qlora import Autocast
from oracle.steps import delta
from oracle.steps.tracker import Tracker
from torch.utils.checkpoint import checkpoint

delta.put_in_place()  # the decoder of Qwen 3.5, of which nothing is told

from probe_vision import borders, cut  # noqa: E402
from sees import FAMILIES  # noqa: E402

HERE = Path(__file__).resolve().parent
TOWER = ("patches", "layer", "deep", "norm", "projector")
PATTERN = r"model\.language_model\.layers\.[\d]+\.(mlp|self_attn)\.(up|down|gate|q|k|v|o)_proj"


def as_on_cuda() -> None:
    """Lets LayerNorm and powers cast what they get under autocast, and PEFT see that of a CPU."""
    norm, power = torch.nn.functional.layer_norm, torch.Tensor.pow

    def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if torch.is_autocast_enabled("cpu"):
            bias, weight, x = bias.float(), weight.float(), x.float()  # from the last to the first, as C++ does
        return norm(x, shape, weight, bias, eps)

    torch.nn.functional.layer_norm = layer_norm
    torch.Tensor.pow = lambda x, exponent: power(
        x.float() if torch.is_autocast_enabled("cpu") else x, exponent)
    asked = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda device="cpu": asked("cpu")


def only_trained(func: Any, *args: Any, **kwargs: Any) -> Any:
    """LLaMA-Factory's checkpoint of a layer, of one with a trained parameter alone.

    ff6d4d12 `model/model_utils/checkpointing.py`, get_custom_gradient_checkpointing_func: it asks for a gradient of the
    layer's first input besides.
    """
    layer = func.args[0]  # transformers 5.23 modeling_layers.py: partial(forward, layer); a bound method before
    if not any(parameter.requires_grad for parameter in layer.parameters()):
        return func(*args, **kwargs)
    next(x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()).requires_grad_(True)
    return checkpoint(func, *args, use_reentrant=False, **kwargs)


def built(case: dict[str, Any]) -> Any:
    """The model as PEFT adapts it, inside transformers' checkpoints if the case asks for them."""
    torch.manual_seed(0)
    model = FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    if case.get("only_trained"):
        model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=only_trained)
    adapted = model if case.get("full") else peft.get_peft_model(model, peft.LoraConfig(
        r=8, lora_alpha=16, target_modules=PATTERN))
    if case.get("recompute") and not case.get("only_trained"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return adapted.train()


def gradients(model: Any, tracker: Tracker, case: dict[str, Any]) -> None:
    """Marks where the gradient of the output of each part of the tower is whole."""
    def watch(name: str, out: Any) -> None:
        out = out if isinstance(out, torch.Tensor) else out[0]
        if out.requires_grad:
            out.register_hook(lambda grad: tracker.mark(f"backward {name}"))

    for name, module in FAMILIES[case["fields"]["model_type"]].parts(model.model).items():
        if isinstance(module, torch.nn.Module) and name not in ("visual",):
            module.register_forward_hook(lambda _m, _a, out, name=name: watch(name, out) if isinstance(
                out, torch.Tensor) else None)


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every section of the second step."""
    as_on_cuda()
    adapted = built(case)
    model = adapted if case.get("full") else adapted.base_model.model
    given = FAMILIES[case["fields"]["model_type"]].inputs(case)
    labels = given["input_ids"].clone()
    tracker = Tracker()
    borders(model, tracker, case)
    gradients(model, tracker, case)
    with tracker:
        for parameter in (*model.parameters(), *model.buffers(), *given.values(), labels):
            tracker.number_of(parameter)
        for _ in range(2):
            adapted.zero_grad(set_to_none=True)
            gc.collect()
            start = len(tracker.events)
            with Autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
                loss = adapted(**given, labels=labels, use_cache=False).loss
            tracker.mark("returned")
            middle = len(tracker.events)
            loss.backward()
            tracker.mark("over")
            del loss
            gc.collect()
            tracker.mark("end")
    changes = [change for _, change in tracker.events]
    before = sum(changes[:middle]) - sum(changes[:start])
    peaks = {"forward": max(accumulate(changes[start:middle], initial=0)),
             "backward": before + max(accumulate(changes[middle:], initial=0))}
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    return {"peaks": peaks, "trained": len(trained), **of_tower(cut(tracker, start))}


def of_tower(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """Sections of the tower's forward; its backward as one, from the gradient of the tower's output on."""
    names = [section["at"] for section in sections]
    begin, end = (names.index(name) if name in names else len(names) for name in ("backward projector", "over"))
    return {"sections": [section for section in sections if section["at"].startswith(TOWER)],
            "backward": [size for section in sections[begin:end] for size in section["events"]]}


def cases() -> list[dict[str, Any]]:
    """Cases of `cases-vision.json` with two ways of a step each; Qwen 3.5's besides with all that is trained."""
    rows = json.loads((HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))
    found = [row | {"name": f"{row['name']}{', replayed' * replayed}", "autocast": True, "recompute": replayed}
             for row in rows if "frozen-" not in row["name"] and not row["name"].startswith("qwen2.5-vl-e")
             for replayed in (False, True)]
    alone = [row | {"name": f"{row['name']}, of trained layers{', full' * full}", "only_trained": True,
                    **({"full": True} if full else {})}
             for row in found for full in (False, True) if row["recompute"] and "-b2" not in row["name"]
             and row["name"].startswith(("qwen2.5-vl", *("gemma3", "mistral3", "qwen2-vl") * full))]
    return [*found, *alone, *(row | {"name": f"{row['name']}, full", "full": True, "frozen": []}
                      for row in found if row["name"].startswith("qwen3.5"))]


if __name__ == "__main__":
    logs.main(__file__, measured, cases())
