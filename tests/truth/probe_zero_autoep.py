"""Measures DeepSpeed's expert parallelism of transformers' models (AutoEP) under stages 0 to 3, on one CPU.

    python tests/truth/probe_zero_autoep.py CHECKOUT > tests/truth/deepspeed/autoep-0.19.6.json
    python tests/truth/probe_zero_autoep.py CHECKOUT drawn > tests/truth/deepspeed/drawn-autoep-0.19.6.json
    python tests/truth/probe_zero_autoep.py CHECKOUT tape > tests/truth/deepspeed/autoep-tape-0.19.6.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6), as for `probe_deepspeed.py`; the process group is torch's fake
one, but an all-to-all gives a rank its own rows back, so that as many arrive as are sent. Triton has no CPU: its SwiGLU
and its places of rows are DeepSpeed's own fallbacks in torch, which is what `ep_kernels.py` and `swiglu_triton.py` run
on a host. The optimizer comes from DeepSpeed's configuration (`torch_adam`). Each collective with its bytes, the ranks
of its group and how often it comes in a row, in the microbatches of the third step and in its update; `kept`: elements
of what the optimizer object holds (`order`: of its first flat buffer's tensors); `tensors`: shapes of parameters in the
order of registration, as the engine got them. `drawn`: cases by a seed, none of which is drawn again because of what
came out. `fetched`: as `probe_zero_fetched.py` has it, of the last microbatch under stage 3. `stops`: where DeepSpeed
stops in a step. `tape`: bytes of every storage that one block makes and drops, forward and backward, with 64 tokens;
SwiGLU there is a function that keeps and makes what the one in Triton does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import random
import sys

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart
from oracle.zero3_calls import watch
from probe_zero_sequences import counted

SEED, COUNT = 20261203, 48
SEED_BELOW_3, COUNT_BELOW_3 = 20261204, 14
SEED_OF_3, COUNT_OF_3 = 20261603, 60
MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "vocab_size": 1000, "tie_word_embeddings": False, "num_experts_per_tok": 2}
QWEN = MODEL | {"moe_intermediate_size": 48, "intermediate_size": 96, "num_experts": 8}
QWEN2 = QWEN | {"shared_expert_intermediate_size": 80}
MIXTRAL = MODEL | {"intermediate_size": 96, "num_local_experts": 4}
BUCKETS = {"reduce_bucket_size": 60_000, "overlap_comm": False}
THREE = BUCKETS | {"stage3_prefetch_bucket_size": 20_000, "stage3_param_persistence_threshold": 100,
                   "stage3_max_reuse_distance": 100_000}


def case(stage, ranks=4, ep=2, kind="qwen3_moe", checkpoint=True, model=None, steps=2, rank=0, **options):
    own = {0: {}, 3: THREE}.get(stage, BUCKETS)
    return {"stage": stage, "type": kind, "model": model or (MIXTRAL if kind == "mixtral" else QWEN), "ranks": ranks,
            "rank": rank, "ep": ep, "checkpoint": checkpoint, "steps": steps, "options": own | options}


SHARED = QWEN2 | {"hidden_size": 192, "num_hidden_layers": 3, "num_experts": 16, "moe_intermediate_size": 72}


def early(**options):
    return case(3, 24, 8, "qwen2_moe", checkpoint=False, model=SHARED, steps=1, stage3_max_live_parameters=100_000,
                stage3_param_persistence_threshold=1_000, **{"stage3_max_reuse_distance": 0} | options)


CASES = {
    "zero": case(0), "zero, mixtral": case(0, kind="mixtral", ep=4), "one": case(1), "two": case(2),
    "two, all": case(2, ep=4), "two, mixtral": case(2, kind="mixtral"), "two, rank 1": case(2, rank=1),
    "two, rank 2": case(2, rank=2), "two, 8 ranks": case(2, ranks=8, ep=2), "two, plain": case(2, checkpoint=False),
    "two, large bucket": case(2, reduce_bucket_size=2_000_000), "three": case(3), "three, all": case(3, ep=4),
    "three, mixtral": case(3, kind="mixtral"), "three, plain": case(3, checkpoint=False),
    "three, 8 ranks": case(3, ranks=8, ep=2), "one, 8 ranks": case(1, ranks=8, ep=4),
    "three, freed early": early(), "three, freed late": early(stage3_max_reuse_distance=100_000),
    "three, none ahead": early(stage3_prefetch_bucket_size=0), "three, few ahead": early(
        stage3_prefetch_bucket_size=8_000), "three, many ahead": early(stage3_prefetch_bucket_size=60_000),
}


WIDE = {"hidden_size": 128, "num_hidden_layers": 1}
TAPES = {
    "qwen3": case(0, model=QWEN | WIDE | {"moe_intermediate_size": 96}, checkpoint=False),
    "qwen3, alone": case(0, ep=1, model=QWEN | WIDE | {"moe_intermediate_size": 96}, checkpoint=False),
    "mixtral": case(0, ep=4, kind="mixtral", model=MIXTRAL | WIDE, checkpoint=False),
    "qwen2": case(0, kind="qwen2_moe", checkpoint=False, model=QWEN | WIDE | {
        "moe_intermediate_size": 96, "shared_expert_intermediate_size": 64}),
}


def drawn():
    """Cases of all stages, further ones of stages 0 to 2, and further ones of stage 3 with other limits."""
    return (draw("e", random.Random(SEED), COUNT, (0, 1, 2, 2, 3, 3))
            | draw("f", random.Random(SEED_BELOW_3), COUNT_BELOW_3, (0, 1, 2, 2)) | draw_of_3())


def draw(letter, rng, count, stages):
    """Stages, ranks, expert groups, models, sizes and buckets."""
    found = {}
    for number in range(count):
        ep = rng.choice((2, 2, 4, 4, 8))
        kind = rng.choice(("qwen3_moe", "qwen3_moe", "mixtral"))
        experts = ep * rng.choice((1, 2, 3))
        sizes = MODEL | {"hidden_size": rng.choice((64, 96, 128)), "num_hidden_layers": rng.choice((1, 2, 3)),
                         "vocab_size": rng.choice((503, 1000, 2000)), "num_experts_per_tok": rng.choice((1, 2))}
        width = rng.choice((48, 72, 96))
        model = sizes | ({"intermediate_size": width, "num_local_experts": experts} if kind == "mixtral" else {
            "moe_intermediate_size": width, "intermediate_size": 96, "num_experts": experts})
        stage = rng.choice(stages)
        options = {} if stage == 0 else {"reduce_bucket_size": rng.choice((60_000, 200_000, 2_000_000))}
        found[f"{letter}{number}"] = case(stage, ep * rng.choice((1, 1, 2, 3)), ep, kind, rng.random() < 0.5, model,
                                   rng.choice((1, 2)), **options)
    return found


def draw_of_3():
    """Stage 3: shared experts, ranks, limits of what is gathered ahead, stays, and is used again; groups of updates."""
    rng, found = random.Random(SEED_OF_3), {}
    for number in range(COUNT_OF_3):
        ep = rng.choice((2, 2, 4, 4, 3, 8))
        kind = rng.choice(("qwen3_moe", "qwen2_moe", "qwen2_moe", "mixtral"))
        experts, width = ep * rng.choice((1, 2, 3)), rng.choice((40, 48, 72))
        heads = rng.choice((2, 4, 6))
        model = MODEL | {
            "hidden_size": 16 * heads * rng.choice((1, 2)), "num_hidden_layers": rng.choice((1, 2, 3, 4)),
            "num_attention_heads": heads, "num_key_value_heads": rng.choice((1, 2)),
            "vocab_size": rng.choice((503, 1000)), "num_experts_per_tok": rng.choice((1, 2))}
        model |= {"intermediate_size": width, "num_local_experts": experts} if kind == "mixtral" else {
            "moe_intermediate_size": width, "intermediate_size": 96, "num_experts": experts}
        model |= {"shared_expert_intermediate_size": rng.choice((56, 90))} if kind == "qwen2_moe" else {}
        found[f"g{number}"] = case(
            3, ep * rng.choice((1, 2, 2, 3)), ep, kind, rng.random() < 0.5, model, rng.choice((1, 2)),
            reduce_bucket_size=rng.choice((20_000, 60_000, 500_000)),
            stage3_prefetch_bucket_size=rng.choice((0, 8_000, 20_000, 20_000, 150_000)),
            stage3_param_persistence_threshold=rng.choice((0, 100, 1_000, 8_000, 15_000)),
            stage3_max_reuse_distance=rng.choice((0, 10_000, 40_000, 100_000, 1_000_000)),
            stage3_max_live_parameters=rng.choice((30_000, 100_000, 1_000_000, 1_000_000)),
            sub_group_size=rng.choice((15_000, 1_000_000)))
    return found


def exchange():
    """An all-to-all among fake ranks: rows come back as they were sent."""
    import torch.distributed as dist
    send = dist.all_to_all_single

    def echoed(*given, **named):
        send(*given, **named)
        named["output"].copy_(named["input"])
    dist.all_to_all_single = echoed


def in_torch():
    """SwiGLU without Triton, as DeepSpeed has it for builds that lack it; and stage 0 sends gradients of a CPU too."""
    importlib.import_module("deepspeed.ops.triton_ops.swiglu_triton")._TRITON_AVAILABLE = False
    engine = importlib.import_module("deepspeed.runtime.engine")  # it knows the types of a GPU's tensors alone
    engine.split_half_float_double_sparse = lambda given: ([], [("dense", list(given))] if given else [])


def readable():
    """transformers 5.23's record of outputs takes no default, at which AutoEP stops for Mixtral and Qwen."""
    from transformers.utils import output_capturing
    known = output_capturing._CanRecordRegistry
    own = known.get

    def get(self, key, *default):
        return dict.get(self, key, *default) if isinstance(key, str) else own(self, key)
    known.get = get


def kept(optimizer, stage):
    if stage == 0:
        return {"masters": base.numel(p for group in optimizer.optimizer.param_groups for p in group["params"])}
    found = base.kept(optimizer, stage)
    if stage == 3:
        found["ranks"] = list(optimizer.sub_group_partition_counts)
    return found


def started(row):
    import deepspeed
    in_torch()
    exchange()
    readable()
    model, config = base.model_of(row)
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["steps"], "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True, "fused": True}},
        "expert_parallel": {"enabled": True, "autoep_size": row["ep"]},
        "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": row["stage"], **row["options"]}})
    return engine, config


def kernel():
    """SwiGLU as Triton's: it keeps both of its inputs, and makes both gradients at once."""
    import torch

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gate, up):
            ctx.save_for_backward(gate, up)
            return torch.empty_like(gate).copy_(gate)

        @staticmethod
        def backward(ctx, grad):
            return tuple(torch.zeros_like(kept) for kept in ctx.saved_tensors)
    importlib.import_module("deepspeed.ops.triton_ops.swiglu_triton").swiglu = Fused.apply


def tape(row):
    """Changes of bytes in the second pass of the first block, forward and backward."""
    import torch
    from oracle.steps.tracker import Tracker
    engine, _ = started(row)
    kernel()
    block = engine.module.model.layers[0].mlp
    given = torch.randn(1, 64, row["model"]["hidden_size"], dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(given)
    block(given).backward(grad)
    block.zero_grad(set_to_none=True)
    given.grad = None
    tracker = Tracker()
    with tracker:
        for known in (*block.parameters(), *block.buffers(), given, grad):
            tracker.number_of(known)
        first = len(tracker.events)
        out = block(given)
        gc.collect()
        second = len(tracker.events)
        out.backward(grad)
        del out
        gc.collect()
    changes = [change for _, change in tracker.events]
    return {"forward": changes[first:second], "backward": changes[second:]}


def run(row):
    import torch
    fetched = []
    if row["stage"] == 3:
        watch(fetched)
    engine, config = started(row)
    found = {"tensors": [[name, list(getattr(p, "ds_shape", p.shape))] for name, p in engine.module.named_parameters()],
             "kept": kept(engine.optimizer, row["stage"])}
    for _ in range(3):  # the order of modules is recorded by then
        found["microbatches"] = []
        for _microbatch in range(row["steps"]):
            base.CALLS.clear()
            fetched.clear()
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            found["microbatches"].append(counted(base.CALLS))
            base.CALLS.clear()
            engine.step()
            found["step"] = counted(base.CALLS)
    return found | ({"fetched": fetched} if row["stage"] == 3 else {})


def or_stops(row):
    """What is found, or the message at which DeepSpeed stops in a step."""
    try:
        return run(row)
    except RuntimeError as error:
        return {"stops": str(error).partition("\n")[0]}


def main():
    sys.path.insert(0, sys.argv[1])
    mode = "".join(sys.argv[2:3])
    asked = {"drawn": drawn(), "tape": TAPES}.get(mode, CASES)
    if len(sys.argv) > 3:
        asked = {name: asked[name] for name in sys.argv[3:]}
    sys.argv[2:] = []
    base.SHARDED = True
    base.NOTED += ("all_to_all_single",)
    base.prepare()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it writes where the rows go
    rows = run_apart(asked, tape if mode == "tape" else or_stops)
    print(with_cases({"deepspeed": "0.19.6 edaa72212", "transformers": "5.23.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
