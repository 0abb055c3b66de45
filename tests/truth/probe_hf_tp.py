"""Measures steps of transformers' models under their own tensor parallel plans and FSDP2: cases of `draw_hf_tp.py`.

    python tests/truth/draw_hf_tp.py | python tests/truth/probe_hf_tp.py > rows

A step of `probe_fsdp2.py` after transformers 5.23.0's own `apply_tensor_parallelism` with the model's `tp_plan`, on the
mesh of its `initialize_distributed_mesh`: FSDP2 wraps what it left, over the ranks that hold the same part. `tp`: ranks
that share matrices. Strides of a whole tensor, which transformers reads off a tensor on the meta device, are computed:
the tracker would count it. flash-attn's kernels of packs, which a CPU has not, are `Packs`.
"""

from __future__ import annotations

from typing import Any

import draw_fsdp2 as plain
import torch
from oracle.rows import drawn_step_row, of_functional
from oracle.steps import models, run, setup
from oracle.worker import serve
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import AttentionInterface
from transformers.distributed.tensor_parallel import TensorParallelLayer, apply_tensor_parallelism

NAMES = ("dp_replicate", "dp_shard", "tp")


def grid(spec: dict[str, Any]) -> DeviceMesh:
    copies, tp = spec["dp_replicate"], spec["tp"]
    return init_device_mesh("cpu", (copies, spec["world"] // copies // tp, tp), mesh_dim_names=NAMES)


def split_at_the_end(local: torch.Tensor, mesh: DeviceMesh, size: int) -> DTensor:
    """`TensorParallelLayer._from_local_last_dim_shard` without a tensor on the meta device."""
    shape = torch.Size((*local.shape[:-1], size))
    strides = tuple(shape[n + 1:].numel() for n in range(len(shape)))
    return DTensor.from_local(local, mesh, [Shard(-1)], run_check=False, shape=shape, stride=strides)


class Packs(torch.autograd.Function):
    """Allocations of flash-attn's mha_varlen_fwd and mha_varlen_bwd (0251105a `csrc/flash_attn/flash_api.cpp`).

    Transcribed from its source: rows of 128 more for each sequence, heads rounded up to 32 elements.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, count: int) -> torch.Tensor:
        batch, rows, heads, _ = q.shape
        out = q.new_empty(q.shape)
        lse = torch.empty((batch, heads, rows), dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.count = count
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, *_kept = ctx.saved_tensors
        _, rows, heads, dim = q.shape
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        longer = rows + 128 * ctx.count
        _work = [torch.empty((heads, longer), dtype=torch.float32, device=q.device),
                 torch.empty((longer, heads, -(-dim // 32) * 32), dtype=torch.float32, device=q.device),
                 *(torch.empty_like(q) for _ in range(2 * (k.shape[2] < heads)))]
        return *grads, None


def pack(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its sequences in one row, and attention of packs in the place of SDPA."""
    each, count = -(-case["seq"] // case["packed"]), case.get("batch", 1)
    AttentionInterface.register("sdpa", lambda _module, q, k, v, *_, **__: (
        Packs.apply(*(x.transpose(1, 2) for x in (q, k, v)), each * count), None))
    return {**case, "batch": 1, "seq": count * case["seq"]}


def shard_tied(model: nn.Module, layers: nn.ModuleList, _spec: dict[str, Any], kw: dict[str, Any], _edp: Any) -> None:
    """transformers' units of a tied head (5.23.0 `distributed/fsdp.py`, _resolve_tied_embed_lm_head_plan)."""
    embedding, norm, _ = models.embed_head_norm(model)
    rests = {**kw, "reshard_after_forward": False}
    for layer in layers:
        fully_shard(layer, **kw)
    fully_shard([embedding, norm], **rests)
    fully_shard(model, **{**kw, "reshard_after_forward": None})


def tie_behind(model: nn.Module) -> None:
    """Ties the head when the model has memory, as `from_pretrained` does it behind its cuts."""
    filled = model.to_empty

    def to_empty(**given: Any) -> nn.Module:
        filled(**given)
        model.lm_head.weight = models.embed_head_norm(model)[0].weight
        return model

    model.to_empty = to_empty
    listed = setup.fsdp_params
    setup.fsdp_params = lambda model: {id(p.sharded_param): p for p in listed(model)}.values()


def measure(case: dict[str, Any]) -> dict[str, Any]:
    build, meshes = run.build, []

    def built(spec: dict[str, Any]) -> nn.Module:
        sizes = {**spec["model"].get("overrides", {}), "tie_word_embeddings": False}
        model = build({**spec, "model": {**spec["model"], "overrides": sizes}})
        if plain.is_tied(spec["model"]):
            setup.shard = shard_tied
            tie_behind(model)
        meshes.append(grid(spec))
        return apply_tensor_parallelism(model, meshes[0]["tp"], model._expand_parallel_plan(dict(model.tp_plan)))

    run.build = built
    TensorParallelLayer._from_local_last_dim_shard = staticmethod(split_at_the_end)
    setup.dp_mesh = lambda spec: meshes[0][NAMES[:2]] if spec["dp_replicate"] > 1 else meshes[0]["dp_shard"]
    row = run.measure(pack(case) if "packed" in case else case)
    row["calls"] = of_functional(row["calls"])
    row["spec"].update({key: case[key] for key in ("batch", "seq") if key in case})
    return row


if __name__ == "__main__":
    serve(measure, drawn_step_row)
