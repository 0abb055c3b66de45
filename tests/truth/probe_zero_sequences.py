"""Measures messages and parts of ZeRO where ranks share sequences (DeepSpeed's `UlyssesSPAttentionHF`), on one CPU.

    python tests/truth/probe_zero_sequences.py CHECKOUT > tests/truth/deepspeed/sequences-0.19.6.json
    python tests/truth/probe_zero_sequences.py CHECKOUT drawn > tests/truth/deepspeed/drawn-sequences-0.19.6.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6), as for `probe_deepspeed.py`, with einops importable; the process
group is torch's fake one. A model of transformers is registered as accelerate 1.15.0 does it (accelerator.py:2424), the
loss is transformers' (`integrations/deepspeed.py`, deepspeed_sp_compute_loss). Each collective with its bytes, the
ranks of its group and how often it comes in a row, in the microbatches of the last step and in its update; `kept`:
elements of what the optimizer object holds, with the format of its buckets; `copies`: allocations of the third step's
last backward that are as long as what is reduced, or half. `drawn`: cases by a seed, none of which is drawn again
because of what came out.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import groupby

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 20261201, 40
SEQ = 64


def case(stage, ranks=4, sp=2, kind="llama", checkpoint=True, seq=SEQ, model=base.LLAMA, steps=2, profiled=True,
         wire="fp32", **options):
    own = {0: {}, 3: base.THREE}.get(stage, base.SMALL)
    return {"stage": stage, "type": kind, "model": model, "ranks": ranks, "rank": 0, "sp": sp, "seq": seq,
            "profiled": profiled, "wire": wire, "checkpoint": checkpoint, "steps": steps, "options": own | options}


FEW = base.LLAMA | {"num_key_value_heads": 2}
CASES = {
    "zero": case(0), "one": case(1), "two": case(2), "two, 3 ranks": case(2, ranks=3, sp=3, model=base.LLAMA | {
        "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3}, seq=48),
    "two, large bucket": case(2, reduce_bucket_size=2_000_000), "three": case(3),
    "three, plain": case(3, checkpoint=False),
    "three, all share": case(3, sp=4, model=FEW), "three, 8 ranks": case(3, ranks=8, sp=2),
    "three, small bucket": case(3, reduce_bucket_size=100_000),
    "two, overlapped": case(2, overlap_comm=True),
    "zero, bf16": case(0, wire="bf16"), "two, bf16": case(2, wire="bf16"), "three, bf16": case(3, wire="bf16"),
}


def drawn():
    """Stages, ranks, groups, heads, sizes, buckets; sequences are divisible by the ranks that share them."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        sp = rng.choice((2, 2, 2, 4, 4, 3, 8))
        heads = sp * rng.choice((1, 2, 2, 3))
        keys = rng.choice([n for n in range(1, heads + 1) if heads % n == 0 and (n % sp == 0 or sp % n == 0)])
        model = base.LLAMA | {
            "hidden_size": heads * rng.choice((16, 32)), "num_attention_heads": heads, "num_key_value_heads": keys,
            "head_dim": rng.choice((16, 32, 64)), "intermediate_size": rng.choice((400, 512, 777)),
            "num_hidden_layers": rng.choice((1, 2, 3, 5)), "vocab_size": rng.choice((1003, 2000, 4000))}
        stage = rng.choice((0, 1, 2, 2, 3, 3, 3))
        sizes = {} if stage == 0 else {"reduce_bucket_size": rng.choice((100_000, 300_000, 2_000_000))}
        found[f"s{number}"] = case(stage, sp * rng.choice((1, 2, 2, 3)), sp, rng.choice(("llama", "qwen2")),
                                   rng.random() < 0.5, sp * rng.choice((8, 20, 33)), model, rng.choice((1, 2, 3)),
                                   profiled=False, **sizes)
    return found


class Config:
    """accelerate's ParallelismConfig, as far as the loss reads it."""

    sp_backend = "deepspeed"

    def __init__(self, size):
        self.sp_size = size


def started(row):
    """The engine, the configuration of its model, and a function of a loss."""
    import deepspeed
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.integrations.deepspeed import deepspeed_sp_compute_loss
    model, config = base.model_of(row)
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model, core_attn_implementation="sdpa", sequence_parallel_size=row["sp"],
        micro_batch_size=1, seq_length=None, seq_length_is_variable=True, disable_in_eval=True)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), fused=True), mpu=mpu, config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["steps"], "bf16": {"enabled": True},
            "seq_parallel_communication_data_type": row["wire"],
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": row["stage"], **row["options"]}})
    local = row["seq"] // row["sp"]

    def loss():
        tokens = torch.randint(0, config.vocab_size, (1, local))
        given = {"input_ids": tokens, "shift_labels": tokens.clone(), "position_ids": torch.arange(local)[None],
                 "use_cache": False}
        return deepspeed_sp_compute_loss(None, engine, given, return_outputs=False, pc=Config(row["sp"]))
    return engine, loss


def kept(optimizer, stage):
    if stage == 0:
        return {"masters": base.numel(p for group in optimizer.optimizer.param_groups for p in group["params"])}
    found = base.kept(optimizer, stage)
    return found | {"formats": [str(dtype).removeprefix("torch.") for dtype in optimizer.ipg_buckets]}


def run(row):
    engine, loss_of = started(row)
    found = {"kept": kept(engine.optimizer, row["stage"])}
    for number in range(4 if row["profiled"] else 3):  # the order of modules is recorded by then
        found["microbatches"] = []
        for microbatch in range(row["steps"]):
            base.CALLS.clear()
            loss = loss_of()
            if number == 2 and microbatch == row["steps"] - 1 and row["profiled"]:
                before = len(base.CALLS)
                moved = base.profiled(partial(engine.backward, loss))
                sent = {one for name, size, *_ in base.CALLS[before:]
                        if name in ("all_reduce", "reduce_scatter_tensor") for one in (size, size // 2)}
                found["copies"] = [size for size in moved if size in sent]
            else:
                engine.backward(loss)
            found["microbatches"].append(counted(base.CALLS))
            base.CALLS.clear()
            engine.step()
        found["step"] = counted(base.CALLS)
    return found


def counted(calls):
    """Each call with how often it comes in a row: [name, bytes, ranks, times]."""
    return [[*one, len(list(alike))] for one, alike in groupby(calls)]


def main():
    sys.path.insert(0, sys.argv[1])
    asked = drawn() if sys.argv[2:3] == ["drawn"] else CASES
    if len(sys.argv) > 3:
        asked = {name: asked[name] for name in sys.argv[3:]}
    sys.argv[2:] = []
    base.SHARDED = True
    base.NOTED += ("all_to_all_single",)
    base.prepare()
    rows = run_apart(asked, run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212", "transformers": "5.23.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
