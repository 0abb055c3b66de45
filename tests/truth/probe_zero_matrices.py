"""Measures messages and parts of ZeRO where ranks share matrices (DeepSpeed's AutoTP), on one CPU.

    python tests/truth/probe_zero_matrices.py > tests/truth/deepspeed/matrices-0.19.6.json
    python tests/truth/probe_zero_matrices.py drawn > tests/truth/deepspeed/drawn-matrices-0.19.6.json

DeepSpeed 0.19.6 as released, with transformers 5.23.0; the process group is torch's fake one. The model is loaded
whole; `deepspeed.initialize` cuts it by transformers' plan (`tensor_parallel: {autotp_size: tp}`). Each collective with
its bytes, the ranks of its group and how often it comes in a row, in the microbatches of the last step and in its
update; `kept`: elements of what the optimizer object holds; `parameters`: elements of each parameter of this rank;
`alive`: bytes of gathered copies of ZeRO-3's parameters, but small ones, whose storage anything still refers to, at the
end of forward and of backward of the last microbatch. `drawn`: cases by a seed, none of which is drawn again because
of what came out.
"""

from __future__ import annotations

import contextlib
import random
import sys

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart
from probe_zero_sequences import counted, kept

SEED, COUNT = 20261207, 48
SEQ = 64
GATHERED = {}


def case(stage, ranks=4, tp=2, kind="llama", checkpoint=True, seq=SEQ, model=base.LLAMA, steps=2, **options):
    own = {0: {}, 3: base.THREE}.get(stage, base.SMALL)
    return {"stage": stage, "type": kind, "model": model, "ranks": ranks, "rank": 0, "tp": tp, "seq": seq,
            "checkpoint": checkpoint, "steps": steps, "options": own | options}


FEW = base.LLAMA | {"num_key_value_heads": 2}
TIED = base.LLAMA | {"tie_word_embeddings": True}
ALONE = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
OTHERS = {
    "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "use_bias": True},
    "seed_oss": {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
                 "residual_dropout": 0.0},
    "granite": {"attention_bias": False, "mlp_bias": False}, "arcee": {"attention_bias": False, "mlp_bias": False},
    "ernie4_5": {"use_bias": False}, "nemotron": {"attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0},
    "gemma": {"head_dim": 64, "attention_bias": False}}
CASES = {
    "zero": case(0), "one": case(1), "two": case(2), "three": case(3), "zero, plain": case(0, checkpoint=False),
    "two, plain": case(2, checkpoint=False), "three, plain": case(3, checkpoint=False),
    "two, few heads": case(2, model=FEW), "three, all share": case(3, tp=4), "two, all share": case(2, tp=4),
    "zero, all share": case(0, tp=4), "two, tied": case(2, model=TIED), "three, tied": case(3, model=TIED),
    "zero, tied, plain": case(0, model=TIED, checkpoint=False), "two, qwen2": case(2, kind="qwen2"),
    "three, qwen2, plain": case(3, kind="qwen2", checkpoint=False), "two, qwen3": case(2, kind="qwen3"),
    "three, qwen3": case(3, kind="qwen3"), "two, overlapped": case(2, overlap_comm=True),
    "three, 8 ranks": case(3, ranks=8), "three, small bucket": case(3, reduce_bucket_size=100_000),
    "three, one by one": case(3, **ALONE), "three, one by one, plain": case(3, checkpoint=False, **ALONE),
    "three, one by one, qwen2, plain": case(3, kind="qwen2", checkpoint=False, **ALONE),
    "three, one by one, tied, plain": case(3, model=TIED, checkpoint=False, **ALONE),
    **{f"{word}, {kind}": case(stage, kind=kind, model=base.LLAMA | more, ranks=6) for kind, more in OTHERS.items()
       for stage, word in ((2, "two"), (3, "three"))},
}


def drawn():
    """Stages, ranks, groups, heads, sizes, buckets; heads, widths and vocabularies are cut evenly."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        tp = rng.choice((2, 2, 2, 4, 4, 3, 8))
        keys = tp * rng.choice((1, 1, 2))
        heads = keys * rng.choice((1, 2, 3))
        model = base.LLAMA | {
            "hidden_size": heads * rng.choice((16, 32)), "num_attention_heads": heads, "num_key_value_heads": keys,
            "head_dim": rng.choice((16, 32, 64)), "intermediate_size": tp * rng.choice((100, 128, 211)),
            "num_hidden_layers": rng.choice((1, 2, 3, 5)), "vocab_size": tp * rng.choice((251, 500, 1003)),
            "tie_word_embeddings": rng.random() < 0.3}
        stage = rng.choice((0, 1, 2, 2, 3, 3, 3))
        sizes = {} if stage == 0 else {"reduce_bucket_size": rng.choice((100_000, 300_000, 2_000_000))}
        found[f"m{number}"] = case(stage, tp * rng.choice((1, 2, 2, 3, 4)), tp, rng.choice((
            "llama", "llama", "qwen2", "qwen3", "mistral")), rng.random() < 0.5, rng.choice((16, 40, 66)), model,
            rng.choice((1, 2, 3)), **sizes)
    return found


def started(row):
    """The engine and the configuration of its model."""
    import deepspeed
    import torch
    model, config = base.model_of(row)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), fused=True), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["steps"], "bf16": {"enabled": True},
            "tensor_parallel": {"autotp_size": row["tp"]}, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": row["stage"], **row["options"]}})
    engine.first_dataloader_check.remove()  # it compares inputs with rank 0's, which are not sent here
    return engine, config


def run(row):
    import torch
    engine, config = started(row)
    watch(engine.module)
    found = {"kept": kept(engine.optimizer, row["stage"]),
             "parameters": [getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()]}
    for _ in range(4):  # the order of modules is recorded by then
        found["microbatches"] = []
        for _ in range(row["steps"]):
            base.CALLS.clear()
            tokens = torch.randint(0, config.vocab_size, (1, row["seq"]))
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            found["alive"] = [alive()]
            engine.backward(loss)
            del loss
            found["alive"].append(alive())
            GATHERED.clear()
            found["microbatches"].append(counted(base.CALLS))
            base.CALLS.clear()
            engine.step()
        found["step"] = counted(base.CALLS)
    return found


def watch(model):
    """Notes the storage of every gathered parameter that a module holds itself, when the module is called."""
    def note(module, given):
        for p in module.parameters(recurse=False):
            if hasattr(p, "ds_numel") and not p.ds_persist and p.numel():
                storage = p.untyped_storage()
                GATHERED[storage.data_ptr()] = storage

    for module in model.modules():
        module.register_forward_pre_hook(note)


def alive():
    import torch
    return sum(one.nbytes() for one in GATHERED.values() if torch._C._storage_Use_Count(one._cdata) > 1)


def main():
    asked = drawn() if sys.argv[1:2] == ["drawn"] else CASES
    if len(sys.argv) > 2:
        asked = {name: asked[name] for name in sys.argv[2:]}
    sys.argv[1:] = []
    base.SHARDED = True
    base.prepare()
    with contextlib.redirect_stdout(sys.stderr):  # AutoTP prints what it leaves whole
        rows = run_apart(asked, run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
