"""Measures layers of nemo-automodel 0.7.0's DeepSeek-V4 event by event, and what its model registers and wraps.

    python tests/truth/probe_automodel_compressed.py > tests/truth/tape/automodel-compressed-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process: `components/models/deepseek_v4/model.py`, DeepseekV4Block, of each kind of
attention, with its own router and shared expert; an MLP stands for the routed experts. `backend`: "torch" for attention
operator by operator, "tilelang" for the wrappers around TileLang's kernels, whose own Python runs: the kernels make
what their `out_idx` says, and `_should_use_tilelang` is told that they are there. The norm `torch_fp32` runs its own
Python too and its backward is one kernel; `F.rms_norm` is CUDA's, which copies what is strided (torch
`aten/src/ATen/native/cuda/layer_norm_kernel.cu`, expect_contiguous). `ends`: the sum of the streams before the last
norm.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components.models.common import BackendConfig, utils
from nemo_automodel.components.models.deepseek_v4 import layers, optimized_kernels
from nemo_automodel.components.models.deepseek_v4 import model as v4
from nemo_automodel.components.models.deepseek_v4.config import DeepseekV4Config
from nemo_automodel.components.models.deepseek_v4.kernels import (
    sparse_attention,
    tilelang_indexer_fwd,
    tilelang_sparse_mla_bwd,
    tilelang_sparse_mla_fwd,
)
from nemo_automodel.components.moe.layers import MLP
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

SHAPE = {
    "hidden_size": 256, "vocab_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64,
    "qk_rope_head_dim": 16, "q_lora_rank": 96, "o_lora_rank": 40, "o_groups": 2, "n_routed_experts": 10,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 48, "compress_ratios": [0, 4, 128, 4],
    "sliding_window": 32, "num_hash_layers": 2, "hc_mult": 4, "hc_sinkhorn_iters": 3, "index_head_dim": 32,
    "index_n_heads": 4, "index_topk": 24, "num_nextn_predict_layers": 0,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    f"{name}, {backend}{way}": {"layer": layer, "backend": backend, "batch": 2, "seq": 256} | more
    for layer, name in enumerate(("window", "chosen keys by table", "one of 128", "chosen keys"))
    for backend in ("torch", "tilelang") for way, more in (
        ("", {}), (", checkpointed", {"checkpoint": True}), (", of one", {"batch": 1, "seq": 384}))}
WIDE = {"head_dim": 256, "num_attention_heads": 40}  # heads in chunks
CASES |= {f"chosen keys, tilelang, {name}": {"layer": 3, "backend": "tilelang", "batch": 2, "seq": 260} | more
          for name, more in (("of many heads", {"overrides": WIDE}), ("of 16 heads", {
              "overrides": {"num_attention_heads": 16}}))}
CASES |= {f"{name}, torch, ragged": {"layer": layer, "backend": "torch", "batch": 2, "seq": 262}
          for layer, name in ((2, "one of 128"), (3, "chosen keys"))}


class Dense(MLP):
    """An MLP that is called as experts are, and reads their weights."""

    def forward(self, x: torch.Tensor, _mask: Any, weights: torch.Tensor, _indices: Any) -> torch.Tensor:
        return super().forward(x) * weights.sum(-1, keepdim=True)


class WideNorm(torch.autograd.Function):
    """`torch_fp32`: its custom operator, and one kernel for both gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        out: torch.Tensor = utils._float32_rms_norm_impl._init_fn(x, weight, eps)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        made = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        return made, torch.empty_like(weight) if ctx.needs_input_grad[1] else None, None


class Fused(torch.autograd.Function):
    """CUDA's `_fused_rms_norm` without a weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.contiguous()
        out = torch.empty_like(rows)
        rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, _rstd = ctx.saved_tensors
        _rows, _grad = x.contiguous(), grad.contiguous()
        return x.new_empty(x.shape)


def stand_in() -> None:
    mla.stand_in()
    utils.Float32RMSNorm.forward = lambda self, x: WideNorm.apply(x, self.weight, self.eps)
    layers._rms_norm_last_dim = lambda x, _eps: Fused.apply(x)
    optimized_kernels._should_use_tilelang = lambda backend, **_: backend in ("tilelang", "auto")
    optimized_kernels._HAS_MILES_SPARSE_ATTN_CHUNKED = True
    optimized_kernels._miles_sparse_attn_tilelang = sparse_attention.sparse_attn_tilelang
    optimized_kernels._miles_sparse_attn_tilelang_head_chunked = sparse_attention.sparse_attn_tilelang_head_chunked
    optimized_kernels._miles_make_causal_cu_seqlens = tilelang_indexer_fwd._make_causal_cu_seqlens
    optimized_kernels._miles_batched_indexer_fwd = tilelang_indexer_fwd.batched_indexer_fwd
    optimized_kernels._HAS_TILE_KERNELS_SINKHORN_FWD = optimized_kernels._HAS_TILE_KERNELS_SINKHORN_BWD = True
    optimized_kernels._tile_kernels_sinkhorn_fwd = lambda *_: lambda *_given: None
    optimized_kernels._tile_kernels_sinkhorn_bwd = lambda *_: lambda *_given: None
    tilelang_indexer_fwd.clean_logits_ = lambda: lambda *_given: None
    tilelang_indexer_fwd.tl_indexer_fwd_impl = lambda **_: lambda *_given: None
    tilelang_sparse_mla_fwd.sparse_mqa_fwd = lambda *_, **__: lambda q, *_given: (
        torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32))
    tilelang_sparse_mla_bwd.preprocess = lambda *_: lambda out, _grad: out.new_empty(out.shape[:3], dtype=torch.float32)
    tilelang_sparse_mla_bwd.bwd = lambda *_: lambda q, *_given: torch.empty_like(q)
    tilelang_sparse_mla_bwd.postprocess = lambda *_: lambda wide: torch.empty_like(wide, dtype=torch.bfloat16)


def config(overrides: dict[str, Any]) -> DeepseekV4Config:
    return DeepseekV4Config(**SHAPE | overrides, torch_dtype="bfloat16")


def backend_of(name: str) -> BackendConfig:
    return BackendConfig(attn=name, linear="torch", rms_norm="torch_fp32", experts="torch_mm", dispatcher="torch",
                         enable_hf_state_dict_adapter=False, rope_fusion=False)


def registered() -> dict[str, Any]:
    with torch.device("meta"):
        made = v4.DeepseekV4ForCausalLM(config({}), backend=backend_of("torch"))
        utils.cast_model_to_dtype(made, torch.bfloat16)
    return {"parameters": [[n, list(p.shape)] for n, p in made.named_parameters()],
            "fp32": [n for n, p in made.named_parameters() if p.dtype == torch.float32],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in made.named_buffers()]}


def model_of(case: dict[str, Any]) -> Any:
    """The model in bf16, but for what it keeps in fp32; an MLP stands for the experts of its layers."""
    torch.set_default_dtype(torch.bfloat16)  # as the class is built; a cast of fake parameters fails
    made = v4.DeepseekV4ForCausalLM(config(case.get("overrides", {})), backend=backend_of(case["backend"]))
    torch.set_default_dtype(torch.float32)
    shape = made.config
    for block in made.model.layers.values():
        block.mlp.experts = Dense(shape.hidden_size, shape.moe_intermediate_size, "torch", dtype=torch.bfloat16)
    return made.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake, seen = Tracker(), FakeTensorMode(), list[int]()
    with fake:
        made = model_of(case)
    block, shape = made.model.layers[str(case["layer"])], made.config
    streams = (case["batch"], case["seq"], shape.hc_mult, shape.hidden_size)
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, streams, seen, tr.events)
        places = torch.arange(streams[1]).unsqueeze(0).expand(streams[0], -1)
        tables = [rotary(x[:, :, 0], places) for rotary in (made.model.rotary_emb, made.model.rotary_emb_compress)]
        given = {"position_ids": places, "input_ids": torch.zeros(streams[:2], dtype=torch.int64),
                 "attention_mask": v4.build_causal_padding_mask(
                     None, streams[1], torch.bfloat16, x.device, streams[0], shape.sliding_window)}
        for known in (*made.parameters(), *made.buffers(), *given.values()):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x=x, position_embeddings=tables[0], position_embeddings_compress=tables[1],
                  rotary_compress=made.model.rotary_emb_compress, **given)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "grads": sorted(n for n, p in block.named_parameters() if p.grad is not None),
            "forward": found[start:middle], "backward": found[after:before - 1]}


def end(case: dict[str, Any]) -> dict[str, Any]:
    """Births and deaths of `hc_head`."""
    tr, fake, seen = Tracker(), FakeTensorMode(), list[int]()
    with fake:
        made = model_of({"backend": "torch"})
    shape = made.config
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, (case["batch"], case["seq"], shape.hc_mult, shape.hidden_size), seen, tr.events)
        for known in made.parameters():
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = made.model.hc_head(x)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


if __name__ == "__main__":
    stand_in()
    rows = {name: events(case) for name, case in CASES.items()}
    print(json.dumps({"shape": SHAPE, "registered": registered(), "end": end({"batch": 2, "seq": 192})})[:-1]
          + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
