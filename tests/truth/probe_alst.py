"""Measures allocations of DeepSpeed's attention over shared sequences (`UlyssesSPAttentionHF`, ALST), on one CPU.

    python tests/truth/probe_alst.py CHECKOUT > tests/truth/tape/alst-deepspeed-0.19.6-torch-2.13.0.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6). transformers' LlamaAttention without its projections runs as
accelerate 1.15.0 does it, over torch's fake process group and SDPA: query, key and value are views of [rows, tokens
of the rank, width], and handed to the function; the output is joined. Each case is a process. In the place of
torch's kernel stands a function that keeps what its CUDA kernel does: the output in the memory order of query, the
log-sum-exp; backward copies an output that is not contiguous, and makes gradients in the orders of the inputs.
`forward`, `backward`: allocations and frees of 1 kB and more, in order; `sent`: bytes of each exchange; `kept`: bytes
that stay when forward is over, without the output. 40 of the cases are drawn by a seed, and once more with more rows.
"""

from __future__ import annotations

import importlib
import os
import random
import sys

from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 20261202, 40
CASES = {"two": {"ranks": 2, "heads": 8, "keys": 8, "dim": 64, "tokens": 64},
         "grouped": {"ranks": 2, "heads": 8, "keys": 4, "dim": 64, "tokens": 64},
         "one key a rank": {"ranks": 4, "heads": 8, "keys": 4, "dim": 32, "tokens": 40},
         "repeated": {"ranks": 4, "heads": 8, "keys": 2, "dim": 64, "tokens": 64},
         "repeated, one head": {"ranks": 4, "heads": 4, "keys": 1, "dim": 64, "tokens": 64}}
CASES |= {f"{name}, {batch} rows": case | {"batch": batch} for (name, case), batch in zip(
    CASES.items(), (2, 3, 2, 2, 3), strict=True)}


def drawn():
    """Ranks, heads, sizes and tokens of a rank."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        ranks = rng.choice((2, 2, 3, 4, 4, 6, 8))
        heads = ranks * rng.choice((1, 2, 3, 4))
        keys = rng.choice([n for n in range(1, heads + 1) if heads % n == 0 and (n % ranks == 0 or ranks % n == 0)])
        found[f"a{number}"] = {"ranks": ranks, "heads": heads, "keys": keys, "dim": rng.choice((16, 32, 64, 128)),
                               "tokens": rng.choice((33, 64, 100, 128))}
    rows = random.Random(SEED + 1)
    for case in list(found.values()):
        found[f"b{len(found) - COUNT}"] = case | {"batch": rows.choice((2, 3, 4))}
    return found


def prepare():
    """Everything is imported once."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    import deepspeed.runtime.sequence_parallel.ulysses_sp  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def profiled(call):
    """Result of a call, and its allocations and frees of 1 kB and more, in bytes, in order."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    found = sorted((event.start_ns(), number, event.nbytes())
                   for number, event in enumerate(profiler.profiler.kineto_results.events())
                   if event.name() == "[memory]" and abs(event.nbytes()) >= 1000)
    return result, [size for _, _, size in found]


def kernel():
    """torch's flash attention, as it allocates on CUDA (2.13 `transformers/cuda/attention_backward.cu`)."""
    import torch

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value):
            out = torch.empty_like(query)
            ctx.save_for_backward(query, key, value, out, torch.empty(query.shape[:3], dtype=torch.float32))
            return out

        @staticmethod
        def backward(ctx, grad):
            *inputs, out, _ = ctx.saved_tensors
            copies = [x.transpose(1, 2).contiguous() for x in (grad, out)]
            made = tuple(map(torch.empty_like, inputs))
            del copies
            return made

    return lambda query, key, value, **named: Kernel.apply(query, key, value)


def run(case):
    import torch
    import torch.distributed as dist
    from deepspeed import comm
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaAttention
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    tokens, dim, batch, sent = case["tokens"], case["dim"], case.get("batch", 1), []
    config = LlamaConfig(hidden_size=case["heads"] * dim, num_attention_heads=case["heads"], head_dim=dim,
                         num_key_value_heads=case["keys"], attn_implementation="sdpa", num_hidden_layers=1)
    module = LlamaAttention(config, 0).train()
    whole = type("Model", (), {"config": config})()
    UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=whole, core_attn_implementation="sdpa", sequence_parallel_size=case["ranks"],
        micro_batch_size=batch, seq_length=None, seq_length_is_variable=True, disable_in_eval=True)
    call = dist.all_to_all_single

    def noting(*given, **named):
        sent.append(named["input"].nbytes)
        return call(*given, **named)

    dist.all_to_all_single = noting
    torch.nn.functional.scaled_dot_product_attention = kernel()
    positions = torch.arange(tokens).expand(batch, tokens).contiguous()
    for _ in range(2):
        sent.clear()
        leaves = [torch.randn(batch, tokens, count * dim, dtype=torch.bfloat16, requires_grad=True)
                  for count in (case["heads"], case["keys"], case["keys"])]
        made = torch.randn(batch, tokens, case["heads"] * dim, dtype=torch.bfloat16)

        def forward(leaves=leaves):
            query, key, value = (x.view(batch, tokens, -1, dim).transpose(1, 2) for x in leaves)
            out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, dropout=0.0,
                                                     scaling=module.scaling, position_ids=positions)
            return out.reshape(batch, tokens, -1).contiguous()

        out, first = profiled(forward)
        _, second = profiled(lambda out=out, made=made: out.backward(made))
    return {"forward": first, "backward": second, "sent": sent, "kept": sum(first) - out.nbytes}


def main():
    sys.path.insert(0, sys.argv[1])
    prepare()
    rows = run_apart(CASES | drawn(), run) if not sys.argv[2:] else run_apart({n: CASES[n] for n in sys.argv[2:]}, run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212", "torch": "2.13.0", "transformers": "5.23.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
