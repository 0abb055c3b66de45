"""What DeepSpeed's Muon keeps, sends and holds for a moment under ZeRO-1 and 2, over small models in bf16 on one CPU.

    python tests/truth/probe_zero_muon.py > tests/truth/deepspeed/muon-0.19.6.json
    python tests/truth/probe_zero_muon.py drawn > tests/truth/deepspeed/drawn-muon-0.19.6.json

DeepSpeed 0.19.6 as released, `"optimizer": {"type": "Muon"}` of its configuration; torch's fake process group, which
notes collectives with the bytes of their largest tensor (`probe_deepspeed.py`). The update runs as written, not
compiled, and what it allocates inside is left out; FusedAdam, which is not compiled here, is torch's fused AdamW.
`groups`: (elements of the flat buffer, of the rank's master, {state: bytes}) of each parameter group, after steps;
`microbatches` and `step`: collectives of the third step; `rest`, `end`: bytes of all storages before and after it;
`backward`, `step_peak`: the most in backward (with the updates of matrices, which are part of it) and in the update,
without what operators make inside. `updates`: shapes of matrices that the rank updates, in order.
`refused`: DeepSpeed's own words.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
from itertools import accumulate

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart

TO_CPU = {"device": "cpu", "pin_memory": False}
CASES = {
    **{f"{stage}, {rank} of {ranks}": base.case(stage, ranks=ranks, rank=rank, checkpoint=False)
       for stage in (1, 2) for ranks, rank in ((1, 0), (4, 0), (4, 1), (4, 3), (3, 1), (64, 40))},
    "2, small bucket": base.case(2, rank=1, checkpoint=False, reduce_bucket_size=70_000),
    "2, overlapped": base.case(2, rank=1, checkpoint=False, overlap_comm=True),
    "1, apart": base.case(1, rank=1, checkpoint=False, contiguous_gradients=False),
    "2, apart": base.case(2, rank=1, checkpoint=False, contiguous_gradients=False),
    "2, one microbatch": base.case(2, rank=2, checkpoint=False) | {"steps": 1},
    "2, host": base.case(2, checkpoint=False, offload_optimizer=TO_CPU),
    "3, scattered": base.case(3, checkpoint=False),
}
SEEDS = {"m": (20271130, 44), "n": (20271202, 40)}
"""`m`: before ZeRO-1 with overlap_comm sent gradients in the order of autograd; `n`: after."""


def drawn(letter):
    """Models, ranks, buckets, microbatches."""
    seed, count = SEEDS[letter]
    rng, found = random.Random(seed), {}
    for number in range(count):
        heads, ranks = rng.choice((2, 3, 4, 5)), rng.choice((1, 2, 3, 4, 5, 8, 16, 48))
        model = base.LLAMA | {
            "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": rng.choice((1, heads)),
            "intermediate_size": rng.choice((400, 512, 777)), "num_hidden_layers": rng.choice((1, 2, 3)),
            "vocab_size": rng.choice((503, 1000, 3001)), "tie_word_embeddings": rng.random() < 0.3}
        options = {"reduce_bucket_size": rng.choice((50_000, 300_000, 2_000_000)),
                   "overlap_comm": rng.random() < 0.5}
        found[f"{letter}{number}"] = base.case(rng.choice((1, 2)), model, ranks, rng.randrange(ranks),
                                        rng.choice(("llama", "qwen2")), rng.random() < 0.5, **options) | {
                                            "steps": rng.choice((1, 2, 3))}
    return found


def started(row):
    import deepspeed
    model, config = base.model_of(row)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row.get("steps", 2),
        "bf16": {"enabled": True}, "optimizer": {"type": "Muon", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": row["stage"], **row["options"]}})
    return engine, config


def prepare():
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    base.prepare()
    logging.disable(logging.CRITICAL)
    import deepspeed.ops.adam
    import torch

    class FusedAdam(torch.optim.AdamW):
        """On a GPU DeepSpeed's own kernel."""

        def __init__(self, params, adam_w_mode=True, **given):
            super().__init__(params, fused=True, **given)

    deepspeed.ops.adam.FusedAdam = FusedAdam


def groups_of(optimizer):
    import torch
    states = optimizer.optimizer.state
    return [[flat.numel(), master.numel(), {
        name: value.untyped_storage().nbytes() for name, value in states.get(master, {}).items()
        if isinstance(value, torch.Tensor) and value.dim()}]
        for flat, master in zip(optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups, strict=True)]


def run(row):
    import torch
    from oracle.steps.tracker import Tracker
    try:
        engine, config = started(row)
    except (ValueError, AssertionError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    tracker = Tracker()
    inner = hide_inner(tracker)
    marks, found = [], {}

    def step():
        found["microbatches"] = []
        for number in range(steps := row.get("steps", 2)):
            base.CALLS.clear()
            marks.append(("forward", len(tracker.events)))
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            marks.append(("backward", len(tracker.events)))
            engine.backward(loss)
            del loss, tokens
            gc.collect()
            found["microbatches"].append(list(base.CALLS))
            base.CALLS.clear()
            marks.append(("step_peak" if number == steps - 1 else "between", len(tracker.events)))
            engine.step()
        found["step"] = list(base.CALLS)
        gc.collect()

    step()
    step()
    gc.collect()
    with tracker:
        rest = base.rest_of(tracker)
        marks.clear()
        inner.clear()
        step()
    running = [0, *accumulate(change for _, change in tracker.events)]
    found |= {"rest": rest, "end": running[-1], "updates": list(inner)}
    for (phase, begin), (_, end) in zip(marks, [*marks[1:], ("", len(running) - 1)], strict=True):
        found[phase] = max(found.get(phase, 0), *running[begin:end + 1])
    return found | {"groups": groups_of(engine.optimizer)}


def hide_inner(tracker):
    """The update's own temporaries are taken out of the log: its output alone appears; shapes are noted."""
    import importlib

    import torch
    from torch.utils._python_dispatch import _disable_current_modes
    module = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
    call, noted = module.muon_update, []

    def updated(grad, momentum, *given, **named):
        noted.append(list(grad.shape))
        with _disable_current_modes():
            made = call(grad, momentum, *given, **named)
        return torch.empty(made.shape, dtype=made.dtype).copy_(made)

    module.muon_update = updated
    return noted


def main():
    asked = drawn("m") | drawn("n") if sys.argv[1:2] == ["drawn"] else CASES
    if len(sys.argv) > 2:
        asked = {name: asked[name] for name in sys.argv[2:]}
    sys.argv[1:] = []
    prepare()
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, run_apart(asked, run), indent=" "))


if __name__ == "__main__":
    main()
