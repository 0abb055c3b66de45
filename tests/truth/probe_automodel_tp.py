"""Measures layers of nemo-automodel 0.7.0's Llama, Qwen2 and Qwen3 under its own tensor parallel plans.

    python tests/truth/probe_automodel_tp.py > tests/truth/tape/automodel-tp-0.7.0-torch-2.13.0.json

Fake tensors on a CPU over PyTorch's fake process group of two ranks: upstream's plan of the model is applied to a model
of one layer by `parallelize_module`, styles translated as upstream does; then its embedding, its layer, its output
projection and its `MaskedCrossEntropy` run one by one. Stand-ins: those of `probe_automodel_dense.py`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import probe_automodel_dense as dense
import torch
import torch.distributed as dist
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
from nemo_automodel.components.distributed import activation_checkpointing as ac
from nemo_automodel.components.distributed.optimized_tp_plans import _parallelize_llama, _parallelize_qwen
from nemo_automodel.components.distributed.parallel_styles import translate_to_lora
from nemo_automodel.components.distributed.parallelizer import (
    _attention_is_head_sharded,
    _get_parallel_plan,
    _update_attention_head_counts_for_tp,
)
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from oracle.steps.tracker import Tracker
from probe_automodel_mla import Around
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

PLANS: dict[str, Any] = {"llama": _parallelize_llama, "qwen2": _parallelize_qwen, "qwen3": _parallelize_qwen}
DROPS: dict[str, dict[str, Any]] = {"phi3": {"pad_token_id": None}, "phi": {"resid_pdrop": 0.0, "embd_pdrop": 0.0},
                                    "seed_oss": {"residual_dropout": 0.0, "attention_dropout": 0.0}}
SEQ, TP = 192, 2
FAKE = FakeTensorMode()
LAYERS: dict[str, dict[str, Any]] = {
    f"{family}{' checkpointed' * again}{' of two' * (batch - 1)}":
    {"family": family, "batch": batch, "checkpoint": bool(again)}
    for family in PLANS for again, batch in ((0, 1), (0, 2), (1, 1))} | {
    f"{family} eager{' checkpointed' * again}{' of two' * (batch - 1)}":
    {"family": family, "batch": batch, "checkpoint": bool(again), "attention": "eager"}
    for family in PLANS for again, batch in ((0, 2), (1, 1))} | {
    f"{family} adapted{' checkpointed' * again}{' of two' * (batch - 1)}":
    {"family": family, "batch": batch, "checkpoint": bool(again), "lora": {"dim": 8}}
    for family in PLANS for again, batch in ((0, 1), (0, 2), (1, 1))} | {
    f"{family} adapted, of many{' checkpointed' * again}":
    {"family": family, "batch": 24, "checkpoint": bool(again), "lora": {"dim": 8}}
    for family in ("llama", "qwen3") for again in (0, 1)} | {
    f"{family} by transformers{words}": {"family": family, "hf": True, "batch": 1, "checkpoint": False} | given
    for family in ("llama", "qwen2", "seed_oss", "phi", "phi3") for words, given in (
        ("", {}), (", adapted", {"lora": {"dim": 8}}), (" of two, checkpointed", {"batch": 2, "checkpoint": True}),
        (", adapted, checkpointed", {"lora": {"dim": 8}, "checkpoint": True}))} | {
    f"mixtral by transformers{words}": {"family": "mixtral", "hf": True, "batch": 1, "checkpoint": False} | given
    for words, given in (("", {}), (", adapted", {"lora": {"dim": 8}}))} | {
    f"{family} by transformers, eager": {"family": family, "hf": True, "batch": 2, "checkpoint": False,
                                         "attention": "eager"} for family in ("llama", "phi")}
PARTS: dict[str, dict[str, Any]] = {
    **{f"{part} of {batch}": {"family": "llama", "part": part, "batch": batch}
       for part in ("embedding", "head") for batch in (1, 2)},
    **{f"{part} of {batch} of Seed-OSS": {"family": "seed_oss", "hf": True, "part": part, "batch": batch}
       for part in ("embedding", "head") for batch in (1, 2)},
    **{f"loss of {batch}{'' if wide else ' in 16 bits'}": {"part": "loss", "batch": batch, "upcast": wide}
       for batch, wide in ((1, True), (2, True), (1, False))},
}


def cut_model(family: str, mesh: Any, attention: str = "sdpa", lora: dict[str, Any] | None = None, *,
              hf: bool = False) -> Any:
    """A model of one layer, cut on the meta device, with fake tensors in the place of its parameters.

    `lora`: settings of adapters, which come first; over tp they are never Triton's (`_transformers/infrastructure.py`).
    """
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        fields = dense.config(family, attention=attention, num_hidden_layers=1, **DROPS.get(family, {}))
        model = (AutoModelForCausalLM.from_config(fields, dtype=torch.bfloat16) if hf else
                 dense.OWN[family](fields, backend=dense.BACKEND)).train()
        if lora is not None:
            apply_lora_to_linear_modules(model, PeftConfig(target_modules=["*_proj"], use_triton=False, **lora))
    torch.set_default_dtype(torch.float32)
    found = _get_parallel_plan(model, tp_size=TP) if hf else PLANS[family](model, False)
    plan = {name: translate_to_lora(style) for name, style in found.items()}
    parallelize_module(model, mesh, plan)
    if _attention_is_head_sharded(found if hf else plan):
        _update_attention_head_counts_for_tp(model, TP)
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, torch.nn.Parameter(faked(p), requires_grad=p.requires_grad))
    return model


def faked(p: torch.Tensor) -> torch.Tensor:
    shape = (p.to_local() if isinstance(p, DTensor) else p).shape
    with FAKE:
        local = torch.empty(shape, dtype=p.dtype)
    return local if not isinstance(p, DTensor) else DTensor.from_local(
        local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def measured(build: Callable[[Any], tuple[Any, list[torch.Tensor]]], shape: tuple[int, ...], dtype: torch.dtype,
             case: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Events of `run(x)`, forward and backward; `build`: what runs, and tensors that lie beside it."""
    tr, seen = Tracker(), []
    run, known = build(mesh)
    with FAKE, tr:
        leaf = torch.empty((), dtype=dtype, requires_grad=True)
        x = Around.apply(leaf, shape, seen, tr.events)
        for one in known:
            tr.number_of(one)
        gc.collect()
        start, comms, tr.phase = len(tr.events), len(tr.comms), "fwd"
        out = run(x)
        middle, between = len(tr.events), len(tr.comms)
        del x
        local = out.to_local() if isinstance(out, DTensor) else out
        del out
        Around.apply(local, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = (*seen, len(found) + 1)[:2]
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1],
            "sent": [[f"{c['kind']} {c['bytes']}" for c in tr.comms[comms:between]],
                     [f"{c['kind']} {c['bytes']}" for c in tr.comms[between:]]]}


def layer(case: dict[str, Any], mesh: Any) -> dict[str, Any]:
    def build(mesh: Any) -> tuple[Any, list[torch.Tensor]]:
        model = cut_model(case["family"], mesh, case.get("attention", "sdpa"), case.get("lora"),
                          hf=case.get("hf", False))
        found = model.model.layers[0]
        if case["checkpoint"] and case.get("hf"):
            found = checkpoint_wrapper(found, preserve_rng_state=False)
        elif case["checkpoint"]:
            ac.apply_submodule_checkpointing([found], False)
        with FAKE:
            turned = dense.SHAPE["head_dim"] // (2 if case["family"] == "phi" else 1)
            tables = tuple(torch.empty(1, SEQ, turned, dtype=torch.bfloat16 if case.get("hf") else torch.float32)
                           for _ in range(2))
            mask = torch.empty(case["batch"], 1, SEQ, SEQ, dtype=torch.bfloat16) if "attention" in case else None
        held = [p.to_local() if isinstance(p, DTensor) else p for p in found.parameters()]
        return (lambda x: found(x, attention_mask=mask, position_embeddings=tables)), [
            *([] if mask is None else [mask]), *held, *tables]

    return measured(build, (case["batch"], SEQ, dense.SHAPE["hidden_size"]), torch.bfloat16, case, mesh)


def part(case: dict[str, Any], mesh: Any) -> dict[str, Any]:
    batch, hidden, vocab = case["batch"], dense.SHAPE["hidden_size"], dense.SHAPE["vocab_size"]
    with FAKE:
        ids = torch.zeros(batch, SEQ, dtype=torch.int64)

    def build(mesh: Any) -> tuple[Any, list[torch.Tensor]]:
        if case["part"] == "loss":
            loss = MaskedCrossEntropy(fp32_upcast=case["upcast"])
            return (lambda x: loss(DTensor.from_local(x, mesh, [Shard(-1)], run_check=False), ids)), [ids]
        model = cut_model(case["family"], mesh, hf=case.get("hf", False))
        found = model.lm_head if case["part"] == "head" else model.model.embed_tokens
        known = [p.to_local() for p in found.parameters()]
        return (found if case["part"] == "head" else lambda _: found(ids)), [ids, *known]

    width = vocab // TP if case["part"] == "loss" else hidden
    return measured(build, (batch, SEQ, width), torch.bfloat16, case, mesh)


if __name__ == "__main__":
    dense.stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        os.environ.update(WORLD_SIZE=str(TP), RANK="0", LOCAL_RANK="0")
        dist.init_process_group(backend="fake", rank=0, world_size=TP, store=FakeStore())
        MESH = init_device_mesh("cpu", (TP,), mesh_dim_names=("tp",))
        made = {name: layer(case, MESH) for name, case in LAYERS.items()}
        parts = {name: part(case, MESH) for name, case in PARTS.items()}
    print("{" + f'"shape": {json.dumps(dense.SHAPE)}, "seq": {SEQ}, "tp": {TP},\n"layers": {dense.lines(made)}'
          f',\n"parts": {dense.lines(parts)}' + "}")
