"""KempnerForge's own transformer (commit 5666d0d16153) under its own FSDP2, tensor parallel plan and checkpointing.

Everything that builds and wraps the model, the loss and the gradient-sync context are the package's; the micro step is
written like the text-only one of its `scripts/train.py`, whose variable `logits` lives until the next forward returns.

Stand-ins: routing is perfectly balanced (`torch.bincount` says so); no label is ignored; `F.one_hot` is what CUDA runs
(zeros, then a scatter in place); the CPU flash kernel.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from kempnerforge.config.model import ModelConfig
from kempnerforge.config.training import ActivationCheckpointing
from kempnerforge.distributed.parallel import apply_ac, apply_fsdp2, default_mp_policy
from kempnerforge.distributed.pipeline_parallel import PipelineStageModule
from kempnerforge.distributed.tensor_parallel import apply_tensor_parallel
from kempnerforge.model.transformer import Transformer
from kempnerforge.training.grad import maybe_no_sync
from kempnerforge.training.loss import cross_entropy_loss
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from .steps.setup import tag_shards, two_steps
from .steps.tracker import Tracker

Case = dict[str, Any]
AUX_LOSS_WEIGHT = 0.01


def config_of(case: Case) -> ModelConfig:
    m = case["model"]
    return ModelConfig(
        dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
        n_kv_heads=m["num_key_value_heads"], vocab_size=m["vocab_size"], ffn_hidden_dim=m["intermediate_size"],
        max_seq_len=case["seq"], num_experts=m.get("num_local_experts", 0),
        moe_top_k=m.get("num_experts_per_tok", 2), moe_packed_experts=case.get("packed", False))


def balanced(rows: torch.Tensor, minlength: int = 0) -> Any:
    """As many rows for every expert, on the host as `tolist()` leaves them."""
    return SimpleNamespace(tolist=lambda: [rows.numel() // minlength] * minlength)


def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    return indices.new_zeros((*indices.shape, num_classes)).scatter_(-1, indices.unsqueeze(-1), 1)


def stand_in() -> None:
    torch.bincount = balanced
    torch.nn.functional.one_hot = one_hot
    no = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda self: False if isinstance(self, FakeTensor) else no(self)


def whole_stage(config: ModelConfig) -> nn.Module:
    """A pipeline's only stage. At this commit wrapping one fails for want of layers that it has not: it gets none."""
    stage = PipelineStageModule(config, 0, 1, (0, config.n_layers))
    stage.cross_attention_layers = nn.ModuleDict()
    return stage


def build(case: Case) -> nn.Module:
    """The order of `build_parallel_model`: tensor parallel, checkpoints, FSDP2."""
    tp = case.get("tp", 1)
    shape, names = ((case["world"] // tp, tp), ("dp_shard", "tp")) if tp > 1 else ((case["world"],), ("dp_shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    with torch.device("meta"):
        config = config_of(case)
        model = whole_stage(config) if case.get("stage") else Transformer(config)
    model.to(torch.bfloat16).train()
    if tp > 1:
        apply_tensor_parallel(model, mesh)
    apply_ac(model, ActivationCheckpointing(case.get("checkpoint", "none")))
    apply_fsdp2(model, mesh, mp_policy=default_mp_policy(torch.bfloat16))
    return model


def micro_step(model: Any, case: Case, tr: Tracker, held: dict[str, torch.Tensor], number: int) -> None:
    shape, count = (case.get("batch", 1), case["seq"]), case.get("grad_accum", 1)
    tr.phase = "fwd"
    ids, labels = (torch.randint(0, case["model"]["vocab_size"], shape) for _ in range(2))
    for tensor in (ids, labels):
        tr.tag(tensor, "input")
    with maybe_no_sync(model, number, count):
        tr.mark("fwd:begin")
        held["logits"] = model(ids)
        loss = cross_entropy_loss(held["logits"], labels)
        if model.config.is_moe and not case.get("stage"):
            loss = loss + AUX_LOSS_WEIGHT * model.get_moe_aux_loss()
        scaled_loss = loss / count
        tr.mark("fwd:end")
        tag_shards(tr, model)
        tr.phase, tr.layer = "bwd", "loss"
        tr.mark("bwd:begin")
        scaled_loss.backward()
    del loss, scaled_loss, ids, labels
    gc.collect()
    tr.mark("bwd:end")


def logged(case: Case) -> tuple[Tracker, dict[str, tuple[int, ...]]]:
    """The log of two steps, and the local shape of every parameter."""
    dist.init_process_group("fake", store=FakeStore(), rank=case.get("rank", 0), world_size=case["world"])
    stand_in()
    model = build(case)
    tr, held = Tracker(), {}
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        model.init_weights_and_freqs()
        gc.collect()
        for table in (model._rope_cos, model._rope_sin):
            tr.tag(table, "buffer")

        def microbatches() -> None:
            for number in range(case.get("grad_accum", 1)):
                micro_step(model, case, tr, held, number)

        return tr, two_steps(model, tr, microbatches)


__all__ = ["logged"]
