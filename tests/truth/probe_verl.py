"""What verl's actor makes of logits, and what a state dict of FSDP 1 keeps: torch alone, on one CPU.

    python tests/truth/probe_verl.py > tests/truth/verl/torch-2.13.0.json

`loss`: allocations of the logits' size, signed, forward and backward apart, of `_forward_micro_batch` (verl b178a3cd
`workers/actor/dp_actor.py`): a row of tokens whose logits are squeezed, divided in place, and scored. flash-attn's
cross entropy runs on CUDA alone; a function that saves and returns what it does stands in for it (flash-attn 2.8
`ops/triton/cross_entropy.py`, inplace_backward). `state_dict`: of a small Llama over fake ranks, bytes that
`state_dict()` keeps, and the most that it has at once, in the order of torch's allocations.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

VOCAB, HIDDEN, TOKENS = 5000, 64, 128
LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000, "tie_word_embeddings": False}
RANKS = (1, 2, 4, 8)


class InPlace(torch.autograd.Function):
    """Saves logits, sums and labels; its gradient takes the place of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.save_for_backward(logits, torch.empty(TOKENS), labels)
        return torch.empty(TOKENS)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, _, _ = ctx.saved_tensors
        return logits, None


class Rows(InPlace):
    """The same of another number of rows."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.save_for_backward(logits, torch.empty(len(logits)), labels)
        return torch.empty(len(logits))


class Apart(InPlace):
    """The same with `inplace_backward=False`: the gradient is a tensor of its own."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, _, _ = ctx.saved_tensors
        return torch.empty_like(logits), None


class Compiled(torch.autograd.Function):
    """The entropy as inductor makes it on a GPU: logits and sums of rows are saved, and a gradient is made."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits, torch.empty(TOKENS))
        return torch.empty(TOKENS)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, _ = ctx.saved_tensors
        return torch.empty_like(logits)


def eager(logits: Any) -> Any:
    """verl's entropy_from_logits in the types that autocast on CUDA gives it: softmax, logsumexp and sum in fp32."""
    shares = torch.nn.functional.softmax(logits, dim=-1, dtype=torch.float32)
    return torch.logsumexp(logits.float(), dim=-1) - torch.sum(shares * logits, dim=-1)


def traced(run: Any) -> tuple[Any, list[int]]:
    """Result of a function, and the bytes of its allocations (negative: frees) in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    found = sorted((event.start_ns(), number, event.nbytes())
                   for number, event in enumerate(profiler.profiler.kineto_results.events())
                   if event.name() == "[memory]")
    return kept, [size for _, _, size in found]


def loss(scores_of: Any = InPlace.apply, entropy: Any = None) -> dict[str, list[str]]:
    """Allocations and frees of the logits' size, of twice that (fp32): "+", "++", "-", "--"."""
    weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    hidden = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    labels, size = torch.randint(0, VOCAB, (TOKENS,)), TOKENS * VOCAB * 2

    def forward() -> Any:
        logits = torch.nn.functional.linear(hidden, weight).squeeze(0)
        logits.div_(0.9)
        scores = -scores_of(logits, labels)
        return scores if entropy is None else scores - entropy(logits)

    for _ in range(2):
        weight.grad = hidden.grad = None
        scores, made = traced(forward)
        ones = torch.ones_like(scores)
        _, undone = traced(lambda scores=scores, ones=ones: scores.backward(ones))
        del scores
    with torch.no_grad():
        _, passed = traced(forward)
    return {name: [("+" if one > 0 else "-") * (abs(one) // size) for one in found if abs(one) in (size, 2 * size)]
            for name, found in (("forward", made), ("backward", undone), ("no_grad", passed))}


def padded(batch: int) -> dict[str, list[str]]:
    """The same of padded rows [batch, tokens]: all but the last token of a row is scored, which is a copy of them."""
    weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    hidden = torch.randn(batch, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    labels, size = torch.randint(0, VOCAB, (batch * (TOKENS - 1),)), batch * TOKENS * VOCAB * 2

    def forward(*, scored: bool = False) -> Any:
        logits = torch.nn.functional.linear(hidden, weight)
        logits.div_(0.9)
        logits = logits[:, -TOKENS:-1, :]
        scores = Rows.apply(logits.reshape(-1, VOCAB), labels)
        return -scores if not scored else (scores, eager(logits))

    for _ in range(2):
        weight.grad = hidden.grad = None
        scores, made = traced(forward)
        ones = torch.ones_like(scores)
        _, undone = traced(lambda scores=scores, ones=ones: scores.backward(ones))
        del scores
    with torch.no_grad():
        _, passed = traced(lambda: forward(scored=True))
    return {name: [("+" if one > 0 else "-") * round(abs(one) / size) for one in found if abs(one) > size / 2]
            for name, found in (("forward", made), ("backward", undone), ("no_grad", passed))}


def state_dict(ranks: int) -> dict[str, int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FullStateDictConfig,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardedStateDictConfig,
        StateDictType,
    )
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    os.environ.setdefault("LOCAL_RANK", "0")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA), dtype=torch.float32)
    wrapped = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), device_mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)),
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.float32))
    how = (StateDictType.FULL_STATE_DICT, FullStateDictConfig()) if ranks == 1 else (
        StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig())
    FullyShardedDataParallel.set_state_dict_type(wrapped, *how)
    wrapped.state_dict()
    made, sizes = traced(wrapped.state_dict)
    highest = now = 0
    for size in sizes:
        now += size
        highest = max(highest, now)
    del made
    dist.destroy_process_group()
    return {"kept": now, "highest": highest}


def main() -> None:
    rows = {str(ranks): state_dict(ranks) for ranks in RANKS}
    print(json.dumps({"torch": torch.__version__, "loss": loss(),
                      "entropy": {"compiled": loss(Apart.apply, Compiled.apply), "eager": loss(Apart.apply, eager)},
                      "padded": {str(batch): padded(batch) for batch in (1, 2)}, "llama": LLAMA,
                      "state_dict": rows}, indent=1))


if __name__ == "__main__":
    main()
