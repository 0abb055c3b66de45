"""Measures GLM-5's dense layers of nemo-automodel 0.7.0 with `attn: tilelang`, event by event.

    python tests/truth/probe_automodel_absorbed.py > tests/truth/tape/automodel-absorbed-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process, packed sequences (thd). TileLang's kernels cannot run there. Their stand-ins make
what the wrappers around them make: `components/models/glm_moe_dsa/kernels/indexer.py` (IndexerFunction: fp32 scores of
every query and key, top-k of them, indices as int32, scores of the chosen), `tilelang_sparse_mla_{fwd,bwd}.py` (output
and fp32 log-sums; one number a row and head, fp32 sums of the keys' gradient, which a kernel casts). Starts and ends of
sequences, a number a token each, are made as one tensor each. `cp`: ranks that share sequences; a process group of two
whose collectives send nothing lays parts side by side, as NCCL's does (torch 2.13 `ProcessGroupNCCL.cpp`,
newLikeFlat). Other stand-ins are those of `probe_automodel_chosen.py`.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import probe_automodel_chosen as chosen
import probe_automodel_mla as mla
import torch
import torch.distributed as dist
from json_lines import by_name
from nemo_automodel.components._peft import lora_mlp
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.glm_moe_dsa import layers, optimized_kernels
from nemo_automodel.components.models.glm_moe_dsa.model import Block
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

BACKEND = BackendConfig(attn="tilelang", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)
TARGETS = ["*q_a_proj", "*q_b_proj", "*kv_a_proj_with_mqa", "*kv_b_proj", "*o_proj"]
CASES: dict[str, dict[str, Any]] = {
    f"{name}{way}": case | more for name, case in {
        "own keys": {"tokens": 192}, "short": {"tokens": 32}, "borrowed keys": {"tokens": 192, "borrows": True},
        "adapted": {"tokens": 192, "lora": 8}}.items() for way, more in {
        "": {}, ", checkpointed": {"checkpoint": True}}.items()}
CASES["interleaved"] = {"tokens": 192, "interleaves": True}
CASES |= {f"over ranks{name}": {"tokens": 96, "cp": 2} | case for name, case in {
    "": {}, ", checkpointed": {"checkpoint": True}, ", borrowed keys": {"borrows": True}}.items()}


class Indexer(torch.autograd.Function):
    """Scores and choice; the scores of the chosen are made and dropped."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor, starts: torch.Tensor,
                ends: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = q.new_empty((q.shape[0], k.shape[0]), dtype=torch.float32)
        if count > k.shape[0]:
            scores = torch.nn.functional.pad(scores, (0, count - k.shape[0]), value=float("-inf"))
        best, indices = torch.topk(scores, count, dim=-1)
        indices = indices.to(torch.int32)
        indices = indices.masked_fill(best == -torch.inf, -1)
        best = of_chosen(scores, indices)
        ctx.save_for_backward(q, k, weights, starts, ends, indices)
        return best, indices

    @staticmethod
    def backward(ctx: Any, *_grads: torch.Tensor) -> Any:
        raise AssertionError("indices have no gradient")


def of_chosen(scores: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    valid = indices != -1
    safe = indices.clamp(min=0).to(torch.int64)
    found = torch.gather(scores, -1, safe)
    return torch.where(valid, found, float("-inf"))


class SparseMla(torch.autograd.Function):
    """[t, heads, rank + rope] and [t, 1, rank + rope] in, [t, heads, rank] out."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor,
                _scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        out = q.new_empty((*q.shape[:2], chosen.SHAPE["kv_lora_rank"]))
        sums = q.new_empty(q.shape[:2], dtype=torch.float32)
        ctx.save_for_backward(q, kv, indices, out, sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _of_sums: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, kv, _indices, _out, sums = ctx.saved_tensors
        return *gradients(q, kv, grad.contiguous(), sums), None, None


def gradients(q: torch.Tensor, kv: torch.Tensor, _grad: torch.Tensor,
              sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _delta = torch.empty_like(sums)
    wide = torch.zeros_like(kv, dtype=torch.float32)
    made = torch.empty_like(q)
    narrow = torch.empty_like(wide, dtype=kv.dtype)
    return made, narrow


def stand_in() -> None:
    mla.stand_in()
    lora_mlp.install_fused_lora_mlp = lambda _model: 0
    layers.should_use_tilelang = lambda *_, **__: True
    layers.is_dsa_kernel_available = lambda _name: True
    optimized_kernels._slime_lighting_indexer = Indexer.apply
    optimized_kernels._slime_sparse_mla = SparseMla
    optimized_kernels._slime_generate_varlen_mask_params = lambda sums: (
        sums.new_empty((TOKENS[0],), dtype=torch.int64), sums.new_empty((TOKENS[0],), dtype=torch.int64))
    dist.init_process_group("fake", rank=0, world_size=2)
    dist.get_backend = lambda **_: dist.Backend.NCCL
    dist.all_gather, dist.reduce_scatter = of_nccl("all_gather"), of_nccl("reduce_scatter")


def of_nccl(name: str) -> Any:
    """Collective of a list of tensors, which NCCL's process group lays side by side in a tensor of its own."""
    plain = getattr(dist, name)

    def collective(*given: Any, **more: Any) -> Any:
        parts = next(x for x in given if isinstance(x, list))
        _flat = parts[0].new_empty((len(parts), *parts[0].shape))
        return plain(*given, **more)

    return collective


TOKENS = [0]


def measured(case: dict[str, Any]) -> dict[str, Any]:
    fake, tr, made, seen = FakeTensorMode(), Tracker(), chosen.config("glm_moe_dsa"), list[int]()
    tokens = case["tokens"]
    TOKENS[0] = tokens * case.get("cp", 1)
    made.indexer_rope_interleave = case.get("interleaves", False)
    made.indexer_types = ["shared" if case.get("borrows") else "full"] * 2
    given: dict[str, Any] = {}
    if "cp" in case:
        given |= {"_glm_dsa_cp_group": dist.group.WORLD}
    with fake:
        block = Block(0, made, None, BACKEND).train()
        if "lora" in case:
            apply_lora_to_linear_modules(block, PeftConfig(target_modules=TARGETS, dim=case["lora"], use_triton=False))
        if case.get("borrows"):
            given["prev_topk_indices"] = torch.zeros((tokens, 1, chosen.SHAPE["index_topk"]), dtype=torch.int32)
        else:
            chosen.stand_in_norm(block.self_attn.indexer.k_norm)
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, (tokens, chosen.SHAPE["hidden_size"]), seen, tr.events)
        table = torch.empty(tokens, chosen.SHAPE["qk_rope_head_dim"] // 2, dtype=torch.complex64)
        sums = torch.empty((2,), dtype=torch.int32)
        if "cp" in case:
            given["glm_dsa_cp_query_indices"] = torch.zeros((tokens,), dtype=torch.int32)
        for known in (*block.parameters(), table, sums, *(x for x in given.values() if isinstance(x, torch.Tensor))):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x=x, freqs_cis=table, qkv_format="thd", cu_seqlens=sums, **given)[0]
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1],
            "grads": sorted(n for n, p in block.named_parameters() if p.grad is not None)}


if __name__ == "__main__":
    stand_in()
    print(json.dumps({"shape": chosen.SHAPE, "targets": TARGETS})[:-1] + ', "layers": {')
    print(by_name({name: measured(case) for name, case in CASES.items()}, compact=True))
    print("}}")
