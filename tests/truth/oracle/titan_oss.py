"""torchtitan's own GPT-OSS (0.2.2, `models/gpt_oss`), as `titan.py` runs the others.

Stand-ins besides its own: flex attention allocates what Inductor's lowering does (torch 2.13 `_inductor/kernel/flex/
flex_attention.py`) and, as a compiled region does, puts out its inputs too, so that a checkpoint by operator keeps
them. Every expert gets as many rows, which the host is told.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from torchtitan.models.attention import FlexAttentionWrapper
from torchtitan.models.gpt_oss.infra import parallelize as plan
from torchtitan.models.gpt_oss.model import moe
from torchtitan.models.gpt_oss.model.args import GptOssModelArgs
from torchtitan.models.gpt_oss.model.model import GptOssModel
from torchtitan.models.moe import MoEArgs

from . import titan
from .steps.tracker import Tracker

Case = dict[str, Any]
FLEX = torch.library.Library("oss", "DEF")
FLEX.define("flex(Tensor(a) q, Tensor(b) k, Tensor(c) v) -> "
            "(Tensor, Tensor, Tensor, Tensor(a), Tensor(b), Tensor(c))")
FILLED = [0]
"""Rows of all experts of this rank, each one's filled up."""


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The output, the logsumexp, its scaled copy (in the memory of the largest scores) and the inputs."""
    raw, scaled = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(q), raw, scaled, q.detach(), k.detach(), v.detach()


FLEX.impl("flex", flex, "CPU")
FLEX.impl("flex", flex, "Meta")
FLEX.impl("flex", torch.library.fallthrough_kernel, "AutogradCPU")


class Flex(torch.autograd.Function):
    """Flex attention of query, key and value [b, heads, s, d]: the output and the scaled logsumexp."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, raw, scaled, *kept = torch.ops.oss.flex(q, k, v)
        ctx.save_for_backward(*kept, out, raw)
        return out, scaled

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor, _scaled: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _raw = ctx.saved_tensors
        _delta = q.new_empty(q.shape[:3], dtype=torch.float32)
        return tuple(torch.empty_like(x) for x in (q, k, v))


def is_oss(case: Case) -> bool:
    return "sliding_window" in case["model"]


def made(case: Case) -> nn.Module:
    """The model, to which its masks are given. `init_weights` makes the buffers of experts anew, in fp32."""
    m = case["model"]
    experts = MoEArgs(num_experts=m["num_local_experts"], num_shared_experts=0, score_func="softmax", route_norm=True,
                      gate_bias=True, score_before_experts=False, top_k=m["num_experts_per_tok"])
    with torch.device("meta"):
        model = GptOssModel(GptOssModelArgs(
            dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
            n_kv_heads=m["num_key_value_heads"], head_dim=m["head_dim"], vocab_size=m["vocab_size"],
            moe_inter_dim=m["intermediate_size"], sliding_window_size=m["sliding_window"], max_seq_len=case["seq"],
            moe_args=experts)).train()
        for block in model.layers.values():
            for name in ("expert_bias", "tokens_per_expert"):
                setattr(block.moe, name, getattr(block.moe, name).float())
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, 1, None, case["seq"], case["seq"], device="cpu")
    model.forward = partial(model.forward, attention_masks={"basic_mask": mask, "sliding_window_mask": mask})
    return model


def wrap(model: nn.Module, case: Case) -> None:
    """`parallelize_gptoss`: tensor parallel, experts, checkpoints, FSDP2."""
    found = titan.dims_of(case)
    tp_mesh, ep_mesh = (found.get_optional_mesh(name) for name in ("tp", "ep"))
    if tp_mesh is not None:
        plan.apply_non_moe_tp(model, tp_mesh, loss_parallel=not case.get("disable_loss_parallel", False),
                              enable_float8_tensorwise_tp=False, enable_async_tp=False)
    if tp_mesh is not None or ep_mesh is not None:
        plan.apply_moe_ep_tp(model, tp_mesh=tp_mesh, ep_mesh=ep_mesh, etp_enabled=found.etp_enabled,
                             ep_etp_mesh=found.get_optional_mesh(["ep", "etp"]))
    titan.checkpointed(model, case)
    replicas = ["dp_replicate"] if found.dp_replicate_enabled else []
    plan.apply_fsdp(model, found.get_mesh([*replicas, "fsdp"]), param_dtype=torch.bfloat16, reduce_dtype=torch.float32,
                    pp_enabled=False, reshard_after_forward_policy=case.get("reshard", "default"), ep_degree=found.ep,
                    edp_mesh=found.get_optional_mesh([*replicas, "efsdp"]))


def saved_operators(_case: Case) -> set[Any]:
    return {*plan._op_sac_save_list, torch.ops.oss.flex.default}


def run_experts(case: Case) -> Any:
    """Upstream's, which is told how many rows its experts have."""
    upstream = moe._run_experts_grouped_mm

    def run(w1: Any, b1: Any, w2: Any, b2: Any, limit: float, x: torch.Tensor, *others: Any) -> torch.Tensor:
        rows, experts = x.shape[0] - 8 * w1.shape[0], w1.shape[0]
        each, more = divmod(rows, experts)
        FILLED[0] = more * -(-(each + 1) // 8) * 8 + (experts - more) * -(-each // 8) * 8
        return upstream(w1, b1, w2, b2, limit, x, *others)

    return run


def logged(case: Case) -> tuple[Tracker, dict[str, tuple[int, ...]]]:
    """As `titan.logged`."""
    repeat = torch.Tensor.repeat_interleave
    with (mock.patch.multiple(titan, made=made, wrap=wrap, saved_operators=saved_operators,
                              is_llama4=lambda _case: True),
          mock.patch.multiple(moe, int=lambda _: FILLED[0], _run_experts_grouped_mm=run_experts(case), create=True),
          mock.patch.object(FlexAttentionWrapper, "_compiled_flex_attn", staticmethod(lambda q, k, v, **_: Flex.apply(
              q, k, v))),
          mock.patch.object(torch.Tensor, "repeat_interleave", lambda self, counts, dim: repeat(
              self, counts, dim=dim, output_size=FILLED[0]))):
        return titan.logged(case)
