"""Measures DeepSeek-V3's dense layer of nemo-automodel 0.7.0 event by event, and what the model registers.

    python tests/truth/probe_automodel_mla.py > tests/truth/tape/automodel-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process. Stand-ins: attention keeps q, k, a contiguous v, the output and fp32 statistics, as
TE's does, and its backward makes three gradients and one workspace of the size that the engine estimates; the Triton
rotation allocates its output; the norm is `rms_norm: torch` with a kernel that allocates what CUDA's does.
"""

from __future__ import annotations

import gc
import json
import logging
import warnings
from typing import Any

from json_lines import by_name

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from nemo_automodel.components.models.common import BackendConfig, rope_triton  # noqa: E402
from nemo_automodel.components.models.deepseek_v3.model import Block, DeepseekV3ForCausalLM  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config  # noqa: E402

SHAPE = {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 80,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {"batch": 2, "seq": 192}, "checkpointed": {"batch": 2, "seq": 192, "checkpoint": True},
    "direct query": {"batch": 1, "seq": 128, "overrides": {"q_lora_rank": None}},
}
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)


class Attention(torch.autograd.Function):
    """[b, s, heads, d] in and out."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, statistics = torch.empty_like(v), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _statistics = ctx.saved_tensors
        made = tuple(torch.empty_like(x) for x in (q, k, v))
        _work = q.new_empty((*q.shape[:3], q.shape[3] + 1), dtype=torch.float32)
        return made


class Around(torch.autograd.Function):
    """What lies before and after the layer: the input and the gradient of the output are the layer's to free."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: tuple[int, ...], seen: list[int], log: list[Any]) -> torch.Tensor:
        ctx.shape, ctx.seen, ctx.log = tuple(x.shape), seen, log
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        made = grad.new_empty(ctx.shape)
        ctx.seen.append(len(ctx.log))
        return made, None, None, None


def fused_rms_norm(x: torch.Tensor, shape: list[int], _weight: Any, _eps: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    return x.new_empty(x.shape), x.new_empty(rows, dtype=torch.float32)


def stand_in() -> None:
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("_fused_rms_norm", fused_rms_norm, "CPU")
    kernels.m.impl("_fused_rms_norm", "Meta", fused_rms_norm, False)
    globals()["KERNELS"] = kernels  # it is unregistered when the object dies
    rope_triton._uses_fused_kernel = lambda _values, _frequencies: True
    rope_triton._launch = lambda values, _frequencies, negate_sin: values.new_empty(values.shape)


def config(overrides: dict[str, Any]) -> DeepseekV3Config:
    made = DeepseekV3Config(**SHAPE | overrides)
    made.torch_dtype = torch.bfloat16
    return made


def registered() -> dict[str, Any]:
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(config({}), backend=BACKEND)
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def block_of(overrides: dict[str, Any]) -> Block:
    block = Block(0, config(overrides), None, BACKEND)
    block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch")
    block.self_attn.attn_func = lambda q, k, v, **_: Attention.apply(q, k, v.contiguous())
    return block.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    fake = FakeTensorMode()
    with fake:
        block = block_of(case.get("overrides", {}))
    return {"case": case, **measured(case, block, fake)}


def measured(case: dict[str, Any], block: Any, fake: FakeTensorMode,
             given: dict[str, Any] | None = None) -> dict[str, list[int]]:
    """Births and deaths of a block's forward and backward; the first of several outputs is the hidden state.

    `given`: what the block is given besides.
    """
    tr, shape, seen = Tracker(), (case["batch"], case["seq"], SHAPE["hidden_size"]), []
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = Around.apply(leaf, shape, seen, tr.events)
        table = torch.empty(*shape[:2], SHAPE["qk_rope_head_dim"] // 2, dtype=torch.complex64)
        for known in (*block.parameters(), table, *(given or {}).values()):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x=x, freqs_cis=table, **given or {})
        out = out[0] if isinstance(out, tuple) else out
        middle = len(tr.events)
        del x
        loss = Around.apply(out, (), seen, tr.events)
        loss.backward()
    found = [change for _, change in tr.events]
    after, before = seen  # the second made a number behind the layer's gradient
    return {"forward": found[start:middle], "backward": found[after:before - 1]}


if __name__ == "__main__":
    stand_in()
    rows = {name: events(case) for name, case in CASES.items()}
    print(json.dumps({"shape": SHAPE, "registered": registered()})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
