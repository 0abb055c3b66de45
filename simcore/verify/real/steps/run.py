"""The training steps of one FSDP2 case on fake tensors, with every storage and collective logged.

Case keys and defaults: ``defaults.py``; their meaning: ``tests/truth/README.md``.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from .defaults import FSDP2_DEFAULTS
from .log import Replay
from .setup import StepsInBackward, build, dt, make_optim, placement, tag_shards, unfuse_precision, wrap
from .tracker import Tracker, local, short

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)

Spec = dict[str, Any]


def summarise_comms(comms: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = defaultdict(lambda: dict(count=0, payload_bytes=0, wire_bytes=0))
    for c in comms:
        a = out[f"{c['kind']}|{c['phase']}|g{c['group']}|{c['dtype']}"]
        n = c["group"] or 1
        a["count"] += 1
        a["payload_bytes"] += c["bytes"]
        a["wire_bytes"] += round(c["bytes"] * (2 if c["kind"] == "all_reduce" else 1) * (n - 1) / n)
    return dict(out)


def micro_step(model: nn.Module, spec: Spec, tr: Tracker, bounds: dict[str, int], first: bool, ignored: set) -> None:
    shape = (spec["batch"], spec["seq"])
    tr.phase = "fwd"
    ids = torch.randint(0, model.config.vocab_size, shape)
    lab = torch.randint(0, model.config.vocab_size, shape)
    tr.tag(ids, "input")
    tr.tag(lab, "input")
    tr.mark("fwd:begin")
    out = model(input_ids=ids, labels=lab, use_cache=False)
    loss = out.loss
    if spec["loss"] == "hf_drop_logits":
        del out
    tr.mark("fwd:end")
    bounds["fwd_end"] = len(tr.events)
    if first:
        tag_shards(tr, model)
        for p in ignored:
            tr.tag(p, "ignored_param")
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    for p in ignored:
        if p.grad is not None:
            tr.tag(p.grad, "ignored_grad")
    del loss, ids, lab
    out = None
    gc.collect()
    tr.mark("bwd:end")
    bounds["bwd_end"] = len(tr.events)


def one_step(model: nn.Module, opt: Any, spec: Spec, tr: Tracker, step: int, ignored: set) -> tuple[dict, list]:
    tr.step = step
    gc.collect()
    bounds = {"start": len(tr.events)}
    first_comm = len(tr.comms)
    for micro in range(spec["grad_accum"]):
        if spec["grad_accum"] > 1 and spec["accum_sync"] == "last":
            model.set_requires_gradient_sync(micro == spec["grad_accum"] - 1)
        if spec.get("is_last") == "last":
            model.set_is_last_backward(micro == spec["grad_accum"] - 1)
        micro_step(model, spec, tr, bounds, step == 0 and micro == 0, ignored)
    tr.phase, tr.layer = "opt", "optim"
    grads = [local(p.grad).untyped_storage() for p in model.parameters() if p.grad is not None]
    bounds["grads_bytes"] = sum({s._cdata: s.size() for s in grads}.values())
    del grads
    if opt is not None:
        tr.mark("opt:begin")
        opt.step()
        for st in opt.state.values():
            for v in st.values():
                if isinstance(v, torch.Tensor):
                    tr.tag(v, "opt_state")
        tr.mark("opt:end")
    bounds["opt_end"] = len(tr.events)
    (model if opt is None else opt).zero_grad(set_to_none=True)
    gc.collect()
    tr.mark("step:end")
    bounds["end"] = len(tr.events)
    return bounds, tr.comms[first_comm:]


def summary(rp: Replay, bounds: dict[str, int], comms: list, accumulates: bool) -> dict[str, Any]:
    b = bounds
    segments = dict(opt=(b["bwd_end"], b["opt_end"]), step=(b["start"], b["end"]))
    if accumulates:
        segments["fwd_bwd"] = (b["start"], b["bwd_end"])
    else:
        segments.update(fwd=(b["start"], b["fwd_end"]), bwd=(b["fwd_end"], b["bwd_end"]))
    out: dict[str, Any] = {}
    for name, (lo, hi) in segments.items():
        out[name] = rp.segment(lo, hi)
        out[name]["where"] = rp.locate(out[name]["at"])
    out["traffic"] = {"by_phase": summarise_comms(comms)}
    if not accumulates:
        out["saved_by_layer"] = rp.saved_by_layer(b["fwd_end"])
    return out


def tensors_of(model: nn.Module) -> list[list[Any]]:
    """Name, elements and type of every parameter as the rank holds it, without wrappers and adapters around it."""
    return [[name.replace("_checkpoint_wrapped_module.", "").replace(".base.", "."), local(p).numel(), short(p.dtype)]
            for name, p in model.named_parameters()]


def measure(case: Spec) -> dict[str, Any]:
    spec = {**FSDP2_DEFAULTS, **case}
    dist.init_process_group("fake", store=FakeStore(), rank=spec["rank"], world_size=spec["world"])
    model = build(spec)
    wrap(model, spec)
    tr = Tracker()
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        names = {n for n, p in model.named_parameters() if not isinstance(p, DTensor) and spec["ep"] > 1}
        if spec["mp_param"] and names:
            unfuse_precision(model, names, dt(spec["mp_param"]))
        ignored = {p for n, p in model.named_parameters() if n in names}
        gc.collect()
        for b in model.buffers():
            tr.tag(b, "buffer")
        opt = StepsInBackward(model, tr) if spec["optim_in_bwd"] else make_optim(model, spec)
        steps = [one_step(model, opt, spec, tr, i, ignored) for i in range(spec["steps"])]
        placed = placement(model, ignored)
        trained = [local(p) for p in model.parameters() if p.requires_grad]
        states = [local(v) for st in (opt.state.values() if opt else ()) for n, v in st.items() if n != "step"]
    rp = Replay(tr)
    accumulates = spec["grad_accum"] > 1
    res: dict[str, Any] = dict(name=spec.get("name", "case"), spec=spec, placement=placed)
    res["tensors"] = tensors_of(model)
    res["grads_bytes"] = steps[-1][0]["grads_bytes"]
    res["trained"] = sum(p.numel() for p in trained)
    res["states_bytes"] = sum(v.numel() * v.element_size() for v in states)
    res["calls"] = [(c["kind"], c["phase"], c["group"], c["dtype"], c["bytes"]) for c in steps[-1][1]]
    res["steps"] = [summary(rp, bounds, comms, accumulates) for bounds, comms in steps]
    if spec.get("saved_layer") and not accumulates:
        end = steps[-1][0]["fwd_end"]
        res["saved_detail"] = {layer: rp.saved_detail(end, layer) for layer in spec["saved_layer"]}
    return res
