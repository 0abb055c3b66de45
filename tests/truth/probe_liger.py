"""What layers and steps with Liger's kernels (0.7.0) allocate, over 32 and 16 bits, under autocast and with adapters.

    python tests/truth/probe_liger.py layers > tests/truth/liger/layers-0.7.0.json
    python tests/truth/probe_liger.py 40 SEED > tests/truth/liger/steps-0.7.0.json

One process, no GPU. Layers: the second of two, event by event. Steps: two of real tensors, as in
`probe_qlora.py`, of drawn models. `way`: parameters in fp32 under autocast (`wide`), all in bf16 (`narrow`), PEFT's
adapters in fp32 on a base in bf16 under autocast (`adapters`), or on one that bitsandbytes packs and PEFT prepares
(`packed`). `place`: the kernels are put into an instance, as
transformers does it, or into the classes of the family (`classes`), as LLaMA-Factory and axolotl do. Launches of
Triton's kernels do nothing (`oracle/liger.py`). Every case runs in a process of its own: classes stay changed.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import peft
import torch
from oracle import liger
from oracle.qlora import packed, steps_of
from oracle.steps import models
from oracle.steps.tracker import Tracker

SMALL = {"vocab_size": 512, "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 688,
         "num_attention_heads": 8, "num_key_value_heads": 4}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "head_dim": 32, "sliding_window": 4096}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-2-7b": {},
    "mistral-7b-v0.3": {"head_dim": 32}, "qwen2.5-7b": {}, "qwen3-4b": {"head_dim": 32},
    "phi-4": {}, "gemma-7b": {"head_dim": 32}, "gemma-2-2b": WINDOWED, "gemma-3-1b": WINDOWED, "olmo-2-1b": {},
    "glm-4-32b-0414": {"head_dim": 32}, "granite-3.3-2b": {}}
KERNELS = ("rope", "rms_norm", "gated", "loss")
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
WAYS = ("wide", "narrow", "adapters")
PACKED = "packed"
BATCH, SEQ = 2, 192


class Around(torch.autograd.Function):
    """What lies before and after a layer: its input, and the gradient of its output, are its own to free."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: tuple[int, ...], seen: list[int], log: list[Any]) -> torch.Tensor:
        ctx.shape, ctx.seen, ctx.log = tuple(x.shape), seen, log
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        made = grad.new_empty(ctx.shape)
        ctx.seen.append(len(ctx.log))
        return made, None, None, None


def targets_of(preset: str) -> list[str]:
    return FUSED if preset.startswith("phi") else [*ALL[:4], *FUSED[2:]] if preset.startswith("glm") else ALL


def built(case: dict[str, Any]) -> Any:
    """The model of a case on meta, with its kernels, in its formats."""
    family = models.fields_of(case["preset"])["model_type"]
    kernels = dict(zip(KERNELS, case["kernels"], strict=True))
    if case["place"] == "classes":
        liger.put_into_classes(family, **kernels)
    attention = "eager" if family == "gemma2" else ""
    model = models.build_meta(case["preset"], case["shape"], attention)
    if case["place"] == "instance":
        gated = "geglu" if family.startswith("gemma") else "swiglu"
        liger.put_into(model, rope=kernels["rope"], rms_norm=kernels["rms_norm"],
                       cross_entropy=False, fused_linear_cross_entropy=kernels["loss"], **{gated: kernels["gated"]})
    return model


def formatted(model: Any, case: dict[str, Any]) -> Any:
    model = model.to(torch.float32 if case["way"] == "wide" else torch.bfloat16)
    if case["way"] == PACKED:
        model = peft.prepare_model_for_kbit_training(packed(model, True), use_gradient_checkpointing=False)
    if case["way"] in ("adapters", PACKED):
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16,
                                                           target_modules=targets_of(case["preset"])))
    return model.train()


def layer(case: dict[str, Any]) -> dict[str, Any]:
    """Births and deaths of a layer's forward, of autocast's copies behind it, and of its backward."""
    tr, seen = Tracker(), list[int]()
    model = formatted(built(case).to_empty(device="cpu"), case)
    inner = model.base_model.model.model if case["way"] == "adapters" else model.model
    one, stream = inner.layers[1], torch.float32 if case["way"] == "wide" else torch.bfloat16
    with tr:
        x = Around.apply(torch.empty((), dtype=stream, requires_grad=True), (BATCH, SEQ, SMALL["hidden_size"]), seen,
                         tr.events)
        turned = 16 if case["preset"].startswith("glm") else 32  # partial_rotary_factor
        tables = tuple(torch.empty(1, SEQ, turned, dtype=stream) for _ in range(2))
        mask = torch.zeros(1, 1, SEQ, SEQ, dtype=stream) if case["preset"].startswith("gemma-2") else None
        for known in (*one.parameters(), *tables, *([] if mask is None else [mask])):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        with torch.autocast("cpu", torch.bfloat16, enabled=case["way"] != "narrow"):
            out = one(x, attention_mask=mask, position_embeddings=tables)
            out = out[0] if isinstance(out, tuple) else out
            middle = len(tr.events)
        end = len(tr.events)
        del x
        Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"forward": found[start:middle], "casts": found[middle:end], "backward": found[after:before - 1]}


def step(case: dict[str, Any]) -> dict[str, int]:
    """Bytes at rest, at the peaks of forward and of the second step, and at its end."""
    torch.manual_seed(0)
    meta = built(case)
    plain = meta.to_empty(device="cpu")
    plain.tie_weights()
    for p in plain.parameters():
        torch.nn.init.normal_(p.data, std=0.02)
    model = formatted(plain, case)
    if case["recompute"]:
        whole = model.base_model.model if case["way"] in ("adapters", PACKED) else model
        whole.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    rest, sizes = steps_of(model, optimizer, autocast=case["way"] != "narrow", vocab=case["shape"]["vocab_size"],
                           tokens=case["tokens"])
    adapted = sum(p.numel() for p in trained) if case["way"] in ("adapters", PACKED) else 0
    return {"rest": rest, **sizes, "trained": adapted}


def layers() -> dict[str, dict[str, Any]]:
    return {f"{preset}, {place}, {way}": {"preset": preset, "shape": SMALL | more, "way": way, "place": place,
                                          "kernels": [not preset.startswith("glm"), True, True, False]}
            for preset, more in FAMILIES.items() for place in ("instance", "classes") for way in WAYS}


def drawn(rng: random.Random) -> dict[str, Any]:
    preset, place = rng.choice(list(FAMILIES)), rng.choice(("instance", "classes"))
    heads, dim = rng.choice((2, 4, 8)), rng.choice((32, 64))
    shape = SMALL | FAMILIES[preset] | {
        "vocab_size": rng.choice((512, 1000, 4096)), "num_hidden_layers": rng.choice((2, 3)),
        "hidden_size": heads * dim, "num_attention_heads": heads, "intermediate_size": 16 * rng.randint(8, 40),
        "num_key_value_heads": rng.choice([n for n in (1, 2, 4) if heads % n == 0 and n <= heads])}
    shape |= {"head_dim": dim} if "head_dim" in shape else {}
    if "layer_types" in shape:
        shape["layer_types"] = ["sliding_attention", "full_attention", "full_attention"][:shape["num_hidden_layers"]]
    if preset.startswith("phi"):
        shape |= {"pad_token_id": 0}
    kernels = [rng.random() < 0.75 for _ in KERNELS]
    kernels[0] = kernels[0] and not preset.startswith("glm")
    kernels[3] = kernels[3] and not preset.startswith("granite")
    return {"preset": preset, "shape": shape, "way": rng.choice((*WAYS, PACKED)), "place": place, "kernels": kernels,
            "recompute": rng.random() < 0.5, "tokens": 16 * rng.randint(2, 24)}


def said(measure: Callable[[dict[str, Any]], dict[str, Any]], case: dict[str, Any]) -> dict[str, Any]:
    return case | {"found": measure(case)}


def rows(cases: dict[str, dict[str, Any]], measure: Callable[[dict[str, Any]], dict[str, Any]]) -> list[str]:
    """Lines of JSON, of cases that are measured in processes of their own; what they share is imported before."""
    liger.import_all()
    torch.set_num_threads(1)
    for preset in FAMILIES:
        family = models.fields_of(preset)["model_type"].removesuffix("_text")
        importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    made = []
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name, case in cases.items():
            found = pool.apply(said, (measure, case))
            made.append(f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}")
    return made


def main(cases: dict[str, dict[str, Any]], measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    versions = {name: version(name) for name in ("liger-kernel", "peft", "torch", "transformers")}
    print(json.dumps(versions)[:-1] + ', "cases": {')
    print(",\n".join(rows(cases, measure)) + "\n}}")


if __name__ == "__main__":
    if sys.argv[1] == "layers":
        main(layers(), layer)
    else:
        rng = random.Random(int(sys.argv[2]))
        main({str(number): drawn(rng) for number in range(int(sys.argv[1]))}, step)
