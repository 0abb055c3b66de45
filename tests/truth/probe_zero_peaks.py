"""Measures the memory of whole steps where ranks share matrices (AutoTP) or experts (AutoEP), ZeRO 1 to 3, on one CPU.

    python tests/truth/probe_zero_peaks.py > tests/truth/deepspeed/peaks-0.19.6.json
    python tests/truth/probe_zero_peaks.py large > tests/truth/deepspeed/large-0.19.6.json

DeepSpeed 0.19.6 as released; exchange, and a SwiGLU that keeps what the one in Triton does, as in
`probe_zero_autoep.py`. Every storage of the third step, from its birth to its death
(`simcore/verify/real/steps/tracker.py`), on top of what all tensors hold before it. `rest`: bytes before the step,
`forward`, `backward`, `step`: the most in each, over its microbatches, `end`: bytes after it. `large`: ZeRO-2 alone,
with gradients larger than `reduce_bucket_size`. Cases are drawn by a seed, none is drawn again because of what came
out.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import sys
from itertools import accumulate

import probe_deepspeed as base
import probe_zero_autoep as experts
import probe_zero_matrices as matrices
from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 20261611, 8
LARGE_SEED, LARGE_COUNT = 20261203, 22
OWN = {1: {"reduce_bucket_size": 400_000}, 2: {"reduce_bucket_size": 400_000},
       3: {"reduce_bucket_size": 400_000, "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 1_000,
           "stage3_max_reuse_distance": 0}}


def drawn():
    """`COUNT` layouts of each stage, of AutoTP and of AutoEP: models, groups, sizes, microbatches, checkpoints."""
    rng, found = random.Random(SEED), {}
    for stage in (1, 2, 3):
        for number in range(COUNT):
            found[f"tp{stage}{number}"] = of_matrices(rng, stage) | {"feature": "tp"}
            found[f"ep{stage}{number}"] = of_experts(rng, stage) | {"feature": "ep"}
    return found


def large():
    """Layouts of ZeRO-2 without AutoTP whose bucket is smaller than some gradients, or all of its matrices."""
    rng, found = random.Random(LARGE_SEED), {}
    for number in range(LARGE_COUNT):
        heads, kind = rng.choice((2, 3, 4)), rng.choice(("llama", "qwen2", "qwen3"))
        model = base.LLAMA | {
            "hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": rng.choice((1, heads)),
            "intermediate_size": rng.choice((200, 512, 900)), "num_hidden_layers": rng.choice((1, 2, 3)),
            "vocab_size": rng.choice((200, 1000, 2000)), "tie_word_embeddings": rng.random() < 0.3}
        found[f"l{number}"] = matrices.case(
            2, rng.choice((1, 2, 3, 4, 8)), 1, kind, rng.random() < 0.5, rng.choice((64, 128)), model,
            rng.choice((1, 1, 2)), reduce_bucket_size=rng.choice((10_000, 40_000, 100_000, 250_000)),
            overlap_comm=rng.random() < 0.4) | {"feature": "large"}
    return found


def of_matrices(rng, stage):
    tp = rng.choice((2, 2, 4))
    keys = tp * rng.choice((1, 2))
    heads = keys * rng.choice((1, 2))
    model = base.LLAMA | {
        "hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 64,
        "intermediate_size": tp * rng.choice((128, 200)), "num_hidden_layers": rng.choice((2, 3)),
        "vocab_size": tp * rng.choice((500, 1000)), "tie_word_embeddings": rng.random() < 0.3}
    return matrices.case(stage, tp * rng.choice((1, 2, 3)), tp, rng.choice(("llama", "qwen2", "qwen3")),
                         rng.random() < 0.5, rng.choice((128, 256)), model, rng.choice((1, 2)), **OWN[stage])


def of_experts(rng, stage):
    ep = rng.choice((2, 2, 4))
    kind = rng.choice(("qwen3_moe", "qwen2_moe", "mixtral"))
    heads, number, width = rng.choice((4, 6)), ep * rng.choice((1, 2)), rng.choice((96, 160))
    model = experts.MODEL | {
        "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": rng.choice((1, 2)),
        "head_dim": 64, "num_hidden_layers": rng.choice((2, 3)), "vocab_size": rng.choice((1000, 2000))}
    model |= {"intermediate_size": width, "num_local_experts": number} if kind == "mixtral" else {
        "moe_intermediate_size": width, "intermediate_size": 96, "num_experts": number}
    model |= {"shared_expert_intermediate_size": 128} if kind == "qwen2_moe" else {}
    return experts.case(stage, ep * rng.choice((1, 2, 2)), ep, kind, rng.random() < 0.5, model, rng.choice((1, 2)),
                        **OWN[stage]) | {"seq": rng.choice((128, 256))}


def started(row):
    if row["feature"] == "tp":
        return matrices.started(row)
    if row["feature"] == "large":
        return base.started(row)
    from deepspeed.utils import debug
    engine, config = experts.started(row)
    experts.kernel()
    debug.debug_clear_module_and_param_names()  # it holds the blocks that AutoEP has replaced, where they were loaded
    return engine, config


def run(row):
    import torch
    from oracle.steps.tracker import Tracker
    engine, config = started(row)

    def step(mark):
        for _ in range(row["steps"]):
            mark("forward")
            tokens = torch.randint(0, config.vocab_size, (1, row["seq"]))
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            mark("backward")
            engine.backward(loss)
            del loss, tokens
            gc.collect()
            mark("step")
            engine.step()
        gc.collect()

    step(lambda phase: None)
    step(lambda phase: None)
    assert base.numel(engine.optimizer.optimizer.state), "an update was skipped"
    gc.collect()
    tracker = Tracker()
    with tracker:
        rest = base.rest_of(tracker)
        marks = []
        step(lambda phase: marks.append((phase, len(tracker.events))))
        running = [0, *accumulate(change for _, change in tracker.events)]
    found = {"rest": rest, "end": running[-1]}
    for (phase, begin), (_, end) in zip(marks, [*marks[1:], ("", len(running) - 1)], strict=True):
        found[phase] = max(found.get(phase, 0), *running[begin:end + 1])
    return found


def main():
    names = sys.argv[1:]
    asked = large() if names[:1] == ["large"] else drawn()
    if names and names != ["large"]:
        asked = {name: asked[name] for name in names if name != "large"}
    sys.argv[1:] = []
    base.prepare()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it writes where the rows go
    with contextlib.redirect_stdout(sys.stderr):  # AutoTP prints what it leaves whole
        rows = run_apart(asked, run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
