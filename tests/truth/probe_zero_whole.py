"""What DeepSpeed sends and keeps at stage 0, over small transformers models on one CPU.

    python tests/truth/probe_zero_whole.py CHECKOUT > tests/truth/deepspeed/whole-0.19.6.json
    python tests/truth/probe_zero_whole.py CHECKOUT drawn > tests/truth/deepspeed/drawn-whole-0.19.6.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6), as for `probe_deepspeed.py`; the process group is torch's fake
one. DeepSpeed's FusedAdam is not compiled: a class of its type keeps its two moments and changes nothing. The bucket,
of 500,000,000 elements, which no key changes, is made small where a case says so. `drawn`: cases by a seed, none of
which is drawn again because of what came out.
`wrapper`: class of the engine's optimizer; `kept`: elements of the 16-bit parameters in its own flat storage, of its
masters and moments; `microbatches`: collectives and bytes of two microbatches; `copies`: allocations of the second
backward that are as long as a bucket that is sent; `memory`: allocations of the step, of 100 kB and more.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from functools import partial

from json_lines import with_cases
from oracle.apart import run_apart

LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4000, "tie_word_embeddings": False}
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CALLS = []


def case(adam, compute="bf16", ranks=4, bucket=300_000, steps=2, **model):
    return {"adam": adam, "compute": compute, "ranks": ranks, "bucket": bucket, "steps": steps, "model": LLAMA | model}


CASES = {
    "deepspeed": case("deepspeed"), "deepspeed, one bucket": case("deepspeed", bucket=None),
    "deepspeed, fp16": case("deepspeed", "fp16"), "deepspeed, one rank": case("deepspeed", ranks=1),
    "deepspeed, fp32": case("deepspeed", "fp32"), "deepspeed, one microbatch": case("deepspeed", steps=1),
    "deepspeed, tied": case("deepspeed", tie_word_embeddings=True),
    "fused": case("fused"), "fused, fp16": case("fused", "fp16"), "fused, one rank": case("fused", ranks=1),
    "fused, fp32": case("fused", "fp32"), "fused, large bucket": case("fused", bucket=2_000_000),
    "foreach": case("foreach"), "foreach, fp32": case("foreach", "fp32"), "loop": case("for_loop"),
}


SEED, COUNT = 20261129, 40


def drawn():
    """Optimizers, formats, ranks, buckets and sizes; every matrix is of 100 kB and more, every norm of less."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        heads = rng.choice((4, 4, 5, 6))
        found[f"w{number}"] = case(
            rng.choice(("deepspeed", "deepspeed", "fused", "foreach", "for_loop")),
            rng.choice(("bf16", "bf16", "bf16", "fp16", "fp32")), rng.choice((1, 2, 2, 3, 4, 5, 8, 16)),
            rng.choice((300_000, 300_000, 700_000, 2_000_000, None)), rng.choice((1, 1, 2, 3)),
            hidden_size=64 * heads, num_attention_heads=heads, num_key_value_heads=heads,
            intermediate_size=rng.choice((400, 512, 777)), num_hidden_layers=rng.choice((1, 2, 3, 4, 6)),
            vocab_size=rng.choice((1003, 2000, 4000, 6001)), tie_word_embeddings=rng.random() < 0.25)
    return found


def adam_of(row, parameters):
    """The optimizer that is handed to DeepSpeed."""
    import torch
    from deepspeed.ops.adam import FusedAdam

    class Own(FusedAdam):
        def __init__(self, given):
            torch.optim.Optimizer.__init__(self, given, {"lr": 0.0})

        def step(self):
            for one in (one for group in self.param_groups for one in group["params"]):
                if not self.state[one]:
                    self.state[one] = {"exp_avg": torch.zeros_like(one.data), "exp_avg_sq": torch.zeros_like(one.data)}

    if row["adam"] == "deepspeed":
        return Own(parameters)
    return torch.optim.AdamW(parameters, fused=row["adam"] == "fused", foreach=row["adam"] == "foreach")


def prepare():
    """Everything is imported once, collectives are noted from the beginning."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    import torch
    import torch.distributed as dist
    call = dist.all_reduce

    def noted(tensor, *given, **named):
        CALLS.append(["all_reduce", tensor.numel() * tensor.element_size()])
        return call(tensor, *given, **named)
    dist.all_reduce = noted
    import deepspeed
    import transformers.models.llama.modeling_llama  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    device = deepspeed.accelerator.get_accelerator()
    device.is_fp16_supported = lambda: True  # a CPU is not asked to be fast
    device.supported_dtypes = lambda: [torch.float, torch.half, torch.bfloat16]


def profiled(call):
    """Allocations and frees of 100 kB and more in a call, in bytes, in order; not of what was there before."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    return [size for _, size in sorted((event.start_ns(), event.nbytes())
                                       for event in profiler.profiler.kineto_results.events()
                                       if event.name() == "[memory]" and abs(event.nbytes()) >= 100_000)]


def started(row):
    """The engine and the configuration of its model."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(row["ranks"])}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=row["ranks"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = AutoConfig.for_model("llama", **row["model"])
    dtype = getattr(torch, FORMATS[row["compute"]])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    formats = {} if row["compute"] == "fp32" else {row["compute"]: {"enabled": True}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam_of(row, model.parameters()), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["steps"], "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 0}, **formats})
    if row["bucket"]:
        engine.allreduce_gradients = partial(engine.allreduce_gradients, bucket_size=row["bucket"])
    return engine, config


def kept(engine):
    """Elements of 16-bit parameters, where they are one storage, of masters and of moments."""
    optimizer = engine.optimizer
    flat = [x.numel() for x in getattr(optimizer, "fp16_groups_flat", [])]
    masters = getattr(optimizer, "fp32_groups_flat", None) or [
        x for group in getattr(optimizer, "fp32_groups", []) for x in group]
    moments = [x.numel() for state in optimizer.state.values() for x in state.values()
               if not isinstance(x, int) and x.numel() > 1]
    return {"flat": flat, "masters": sum(x.numel() for x in masters), "moments": sum(moments),
            "storages": len({p.untyped_storage().data_ptr() for p in engine.module.parameters()})}


def run(row):
    import torch
    engine, config = started(row)
    for _ in range(3):  # what was made while the profiler ran is all whose end it sees
        found = {"wrapper": type(engine.optimizer).__name__, "microbatches": []}
        for _ in range(row["steps"]):
            CALLS.clear()
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            moved = profiled(partial(engine.backward, loss))
            found["microbatches"].append(list(CALLS))
            sent = {size for _, size in CALLS}
            found["copies"] = [size for size in moved if abs(size) in sent]
            CALLS.clear()
            found["memory"] = profiled(engine.step)
        found["step"] = list(CALLS)
        found["kept"] = kept(engine)
        found["left"] = sum(p.grad is not None for p in engine.module.parameters())
    return found


def main():
    sys.path.insert(0, sys.argv[1])
    prepare()
    print(with_cases({"deepspeed": "0.19.6 edaa72212"}, run_apart(drawn() if sys.argv[2:] else CASES, run), indent=" "))


main()
