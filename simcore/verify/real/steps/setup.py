"""The model of one FSDP2 case: meta parameters, meshes, checkpointing, ``fully_shard``, optimizer."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import adam

from . import mamba, models
from .host_checkpoint import OnHost
from .tracker import Tracker, local

Spec = dict[str, Any]
EXPERT_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")


def dt(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def dp_mesh(spec: Spec) -> DeviceMesh:
    w, r = spec["world"], spec["dp_replicate"]
    if r > 1:
        return init_device_mesh("cpu", (r, w // r), mesh_dim_names=("dp_replicate", "dp_shard"))
    return init_device_mesh("cpu", (w,), mesh_dim_names=("dp_shard",))


def build(spec: Spec) -> nn.Module:
    m = spec["model"]
    attention = spec.get("attention", "")
    if "fields" in m:
        model = models.build_fields(m["fields"], attention)
    else:
        model = models.build_meta(m["preset"], m.get("overrides"), attention)
    for p in model.parameters():  # buffers keep their type: rotary frequencies are fp32 in a model of any type
        p.data = p.data.to(dt(spec["store_dtype"]))
    model.train()
    if spec.get("liger"):
        from .. import liger

        liger.put_into(model)
    return model


def split_experts(model: nn.Module, spec: Spec, ep_mesh: DeviceMesh) -> set[nn.Parameter]:
    """Give every rank its slice of the experts; returns the parameters FSDP has to ignore."""
    ignored = set()
    for em in models.expert_modules(model):
        for n in EXPERT_WEIGHTS:
            if not hasattr(em, n):
                continue
            p = getattr(em, n)
            if spec["ep_mode"] == "ignored":
                shape = (p.shape[0] // spec["ep"], *p.shape[1:])
                q = nn.Parameter(p.new_empty(shape).to(dt(spec["store_dtype"])))
                ignored.add(q)
            else:
                q = nn.Parameter(distribute_tensor(p.detach(), ep_mesh, [Shard(0)]))
            setattr(em, n, q)
    return ignored


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """No gradient for parameters whose name, or the name of a module that holds them, a pattern matches."""
    for name, p in model.named_parameters():
        parts = name.split(".")
        names = [".".join(parts[: i + 1]) for i in range(len(parts))]
        if any(fnmatchcase(one, pattern) for one in names for pattern in patterns):
            p.requires_grad_(requires_grad=False)


def checkpoint(model: nn.Module, layers: nn.ModuleList, spec: Spec) -> None:
    if spec["ac"] == "layer":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i in range(len(layers)):
            layers[i] = checkpoint_wrapper(layers[i])
    elif spec["ac"] == "host":
        for i in range(len(layers)):
            layers[i] = OnHost(layers[i])
    elif spec["ac"] == "hf":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if spec["lora"]:
            model.enable_input_require_grads()


def wrap(model: nn.Module, spec: Spec) -> None:
    """Apply EP, LoRA, checkpointing and ``fully_shard``."""
    mp = MixedPrecisionPolicy(param_dtype=dt(spec["mp_param"]), reduce_dtype=dt(spec["mp_reduce"]))
    kw: dict[str, Any] = dict(mesh=dp_mesh(spec), mp_policy=mp, reshard_after_forward=spec["reshard"])
    ep, ep_mesh, edp_mesh = spec["ep"], None, None
    if ep > 1:
        grid = init_device_mesh("cpu", (spec["world"] // ep, ep), mesh_dim_names=("edp", "ep"))
        ep_mesh, edp_mesh = grid["ep"], grid["edp"]
    if models.expert_modules(model):
        if spec.get("experts_implementation", "balanced") == "balanced":
            models.patch_balanced_experts(model, ep_mesh.get_group() if ep_mesh else None, ep)
        else:
            model.config._experts_implementation = spec["experts_implementation"]
    if spec["mamba"] == "fused_stub":
        mamba.put_in_place()
    if ep_mesh:
        kw["ignored_params"] = split_experts(model, spec, ep_mesh) or None
    if spec["lora"]:
        lo = spec["lora"]
        models.apply_lora(model, lo["r"], set(lo["targets"]), dt(lo.get("dtype") or spec["store_dtype"]))
    freeze(model, spec.get("frozen", ()))
    layers = models.decoder_layers(model)
    checkpoint(model, layers, spec)
    shard(model, layers, spec, kw, edp_mesh if spec["ep_mode"] == "dtensor" else None)
    if spec["set_last_reshard"] is not None:
        layers[-1].set_reshard_after_forward(spec["set_last_reshard"])
    if spec["prefetch"]:
        n, ls = spec["prefetch"], list(layers)
        for i, layer in enumerate(ls):
            layer.set_modules_to_forward_prefetch(ls[i + 1 : i + 1 + n])
            layer.set_modules_to_backward_prefetch(ls[max(0, i - n) : i][::-1])


def shard(model: nn.Module, layers: nn.ModuleList, spec: Spec, kw: dict[str, Any], edp: DeviceMesh | None) -> None:
    """One group per layer (and per expert module on the ``edp`` mesh), then the root."""
    emb, norm, head = models.embed_head_norm(model)
    titan = spec["wrap"] == "titan"
    if titan or spec["wrap"] == "embedding":
        fully_shard(emb, **kw)
    for layer in layers:
        for em in models.expert_modules(layer) if edp else ():
            fully_shard(em, **{**kw, "mesh": edp})
        fully_shard(layer, **kw)
    if titan:
        fully_shard([norm, head], **{**kw, "reshard_after_forward": False})
    fully_shard(model, **kw)


def unfuse_precision(model: nn.Module, names: set[str], dtype: torch.dtype) -> None:
    """Expert slices bypass FSDP's mixed precision: they are kept in the compute dtype."""
    for n in names:
        owner, _, leaf = n.rpartition(".")
        parent = model.get_submodule(owner)
        old = getattr(parent, leaf)
        setattr(parent, leaf, nn.Parameter(old.detach().to(dtype), requires_grad=old.requires_grad))


def fsdp_params(model: nn.Module) -> Iterator[Any]:
    for mod in model.modules():
        if isinstance(mod, FSDPModule):
            for g in mod._get_fsdp_state()._fsdp_param_groups:
                yield from g.fsdp_params


def tag_shards(tr: Tracker, model: nn.Module) -> None:
    """After a forward that made them anew."""
    for p in fsdp_params(model):
        tr.tag(p._sharded_param_data, "sharded_param")
        tr.tag(p.sharded_param, "sharded_param")


def placement(model: nn.Module, ignored: set[nn.Parameter]) -> dict[str, int]:
    """Distinct parameters, their elements in the model, this rank's bytes without and with padding."""
    out = dict(params=0, numel=0, local_bytes=0, padded_bytes=0)
    seen = set()
    rows = []
    for p in fsdp_params(model):
        if id(p) not in seen:
            seen.add(id(p))
            size = p.sharded_param.element_size()
            here = local(p.sharded_param).numel() * size
            rows.append((math.prod(p._orig_size), here, p._sharded_param_data.numel() * size))
    rows += [(q.numel(), q.numel() * q.element_size(), q.numel() * q.element_size()) for q in ignored]
    for numel, here, padded in rows:
        out["params"] += 1
        out["numel"] += numel
        out["local_bytes"] += here
        out["padded_bytes"] += padded
    return out


def make_optim(model: nn.Module, spec: Spec) -> torch.optim.Optimizer | None:
    # AdamW reads its step counters with .item(); fake tensors have no value
    adam._get_value = lambda x: 1.0 if isinstance(x, torch.Tensor) else x
    ps: Any = [p for p in model.parameters() if p.requires_grad]
    if spec.get("optim_groups") == "apart":
        ps = [{"params": [p for p in ps if isinstance(p, DTensor) == shards]} for shards in (True, False)]
    kind = spec["optim"]
    if kind == "none":
        return None
    if kind == "sgd":
        return torch.optim.SGD(ps, lr=1e-4, foreach=True)
    if kind == "adamw_fused":
        return torch.optim.AdamW(ps, lr=1e-4, fused=True)
    return torch.optim.AdamW(ps, lr=1e-4, foreach={"adamw_foreach": True, "adamw_forloop": False}[kind])


class StepsInBackward:
    """One AdamW a parameter, that steps and drops the gradient when it is there (torchtune `optimizer_in_bwd`)."""

    def __init__(self, model: nn.Module, tracker: Tracker) -> None:
        adam._get_value = lambda x: 1.0 if isinstance(x, torch.Tensor) else x
        self.tracker = tracker
        self.each = {p: torch.optim.AdamW([p], lr=1e-4, foreach=True) for p in model.parameters() if p.requires_grad}
        for p in self.each:
            p.register_post_accumulate_grad_hook(self.update)

    def update(self, p: torch.Tensor) -> None:
        phase, self.tracker.phase = self.tracker.phase, "opt"
        self.each[p].step()
        self.each[p].zero_grad()
        self.tracker.phase = phase

    @property
    def state(self) -> dict[Any, Any]:
        return {p: optimizer.state[p] for p, optimizer in self.each.items()}

    def step(self) -> None:
        """It is done."""

    def zero_grad(self, *, set_to_none: bool) -> None:
        assert set_to_none
        assert all(p.grad is None for p in self.each)


def optimizer_step(optimizer: torch.optim.Optimizer, tracker: Tracker) -> None:
    """A step whose states are tagged; gradients are dropped behind it."""
    tracker.phase, tracker.layer = "opt", "optim"
    optimizer.step()
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                tracker.tag(value, "opt_state")
    optimizer.zero_grad(set_to_none=True)
    gc.collect()


def two_steps(model: nn.Module, tracker: Tracker, microbatches: Callable[[], None]) -> dict[str, tuple[int, ...]]:
    """Fused AdamW's first two steps, the first of which makes its states; the local shape of every parameter."""
    optimizer = make_optim(model, {"optim": "adamw_fused"})
    assert optimizer is not None
    for _ in range(2):
        microbatches()
        optimizer_step(optimizer, tracker)
    return {name.replace("_checkpoint_wrapped_module.", ""): tuple(local(p).shape)
            for name, p in model.named_parameters()}
