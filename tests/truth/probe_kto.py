r"""KTO of TRL 1.16.0, 0.24.0 and axolotl: what a real step allocates and frees of rows of logits, and what it holds.

    python tests/truth/probe_kto.py > tests/truth/losses/kto-trl-1.16.0.json
    python tests/truth/probe_kto.py SEED COUNT > tests/truth/losses/kto-drawn-trl-1.16.0.json
    PYTHONPATH=TRL python tests/truth/probe_kto.py > tests/truth/losses/kto-trl-0.24.0.json
    PYTHONPATH=TRL python tests/truth/probe_kto.py SEED COUNT > tests/truth/losses/kto-drawn-trl-0.24.0.json
    PYTHONPATH=TRL python tests/truth/probe_kto.py CLONE > tests/truth/losses/kto-axolotl-067b021c.json
    PYTHONPATH=TRL python tests/truth/probe_kto.py CLONE SEED COUNT > tests/truth/losses/kto-drawn-axolotl-067b021c.json

TRL: a folder with TRL 0.24.0, or with 1.8.0, which axolotl pins, whose functions of log-probabilities are put in the
place of TRL's (CLONE: as in `probe_preference.py`). A CPU runs KTOTrainer's own training step on a small Llama, as
`probe_trl_preference.py` and `probe_trl_pairs.py` run DPOTrainer's; its profiler gives allocations. A model passes up
to four times: the policy over mismatched completions, the policy, the reference over mismatched completions, the
reference. `passes`: of each, signed bytes of a row of logits in 16 bits and more from the end of what is marked (the
decoder of 1.16.0, the model of others) until the next pass or backward begins; `backward`: those behind, until the
gradient of the decoder's output is there in 1.16.0. Beside them bytes above those before the step where each pass but
the first begins, where backward begins, and the highest until it ends. All tokens but the first are answers, all
sequences are of one length.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from contextlib import redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import Any

import probe_trl_pairs
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from torch.profiler import record_function

IS_OLD, HAS_HEAD = "0.24" in version("trl"), find_spec("trl.kernels") is not None
if IS_OLD:
    from trl import KTOConfig, KTOTrainer
else:
    from trl.trainer import kto_trainer
    from trl.trainer.kto_trainer import KTOConfig, KTOTrainer
if HAS_HEAD:
    import probe_trl_preference

NAMES = ("model", "decoder", "backward", "gradient")
CASES = tuple({"method": method, "batch": batch, "seq": seq, "vocab": vocab, "mixed": mixed, "replays": replays,
               "before": before, "chosen": chosen}
              for method, before in (("lora", False), ("full", False), ("lora", True))
              for batch, seq, vocab, mixed, replays, chosen in (
                  (2, 64, 4096, True, False, 1), (3, 48, 2048, False, True, 2), (4, 80, 4096, True, True, 3),
                  (2, 72, 2048, False, False, 2)))


def rows(case: dict[str, Any]) -> Dataset:
    """Samples as the trainer has prepared them: a prompt of one token, answers, and answers to another prompt."""
    batch, seq = case["batch"], case["seq"]
    ids = {"completion_ids": [2] * (seq - 1), "KL_completion_ids": [3] * (seq - 1), "prompt_ids": [1]}
    if IS_OLD:
        ids = {f"{kind}_{name}": values for kind in ("completion", "KL_completion") for name, values in (
            ("input_ids", [1] + [2] * (seq - 1)), ("attention_mask", [1] * seq),
            ("labels", [-100] + [2] * (seq - 1)))} | {"prompt_input_ids": [1], "prompt_attention_mask": [1]}
    told = {"reference_logps": 0.0, "reference_KL_logps": 0.0} if IS_OLD and case["before"] else {}
    one = [ids | told | {"prompt": "w1", "completion": "w2", "label": number < case["chosen"]}
           for number in range(batch)]
    return Dataset.from_list(one * 4)


def trainer(case: dict[str, Any]) -> Any:
    mixed, full = case["mixed"], case["method"] == "full"
    asked: dict[str, Any] = {"max_prompt_length": None} if IS_OLD else {"precompute_ref_log_probs": case["before"]}
    args = KTOConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=case["batch"], bf16=mixed,
                     use_cpu=True, report_to=[], max_steps=3, save_strategy="no",
                     gradient_checkpointing=case["replays"], max_length=case["seq"], remove_unused_columns=False,
                     disable_tqdm=True, **asked)
    dtype = torch.float32 if full and mixed else torch.bfloat16
    lora = None if full else LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    second = probe_trl_pairs.model(case["vocab"], dtype) if full and not case["before"] else None
    given: dict[str, Any] = {"model": probe_trl_pairs.model(case["vocab"], dtype), "ref_model": second, "args": args,
                             "peft_config": lora, "processing_class": probe_trl_pairs.tokenizer()}
    if not IS_OLD:
        KTOTrainer._prepare_dataset = lambda self, data, *_, **__: data
        return KTOTrainer(**given, train_dataset=rows(case))
    text = Dataset.from_list([{"prompt": "w1", "completion": "w2", "label": number % 2 == 0} for number in range(16)])
    made = KTOTrainer(**given, train_dataset=text)
    made.train_dataset = rows(case)
    return made


def marked(made: Any) -> None:
    """Marks what a model is: its decoder, where the trainer's head scores tokens itself, or all of it."""
    base = made.model.get_base_model() if hasattr(made.model, "get_base_model") else made.model
    for one in (base, *([] if made.ref_model is None else [made.ref_model])):
        if HAS_HEAD:
            probe_trl_preference.marked(one.model)
        else:
            probe_trl_pairs.marked(one)


def profiled(made: Any) -> tuple[list[tuple[str, int, int]], list[tuple[int, int]]]:
    """((name, begin, end) of what is marked in the third step; moments and signed bytes)."""
    marked(made)
    own, backward, number, found = made.training_step, made.accelerator.backward, iter(range(9)), []

    def undone(*args: Any, **kwargs: Any) -> None:
        with record_function("backward"):
            backward(*args, **kwargs)

    def step(*args: Any, **kwargs: Any) -> Any:
        if next(number) < 2:
            return own(*args, **kwargs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            loss = own(*args, **kwargs)
        found.extend(profiler.profiler.kineto_results.events())
        return loss

    made.accelerator.backward, made.training_step = undone, step
    made.train()
    return (sorted(((event.name(), event.start_ns(), event.start_ns() + event.duration_ns()) for event in found
                    if event.name() in NAMES), key=lambda one: one[1]),
            sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]"))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The case, and what its step allocates, frees and holds."""
    named, found = profiled(trainer(case))
    least = 2 * (case["seq"] - 1) * case["vocab"] if not HAS_HEAD else 32 * case["batch"] * (case["seq"] - 1)
    begun, ended = next((start, end) for name, start, end in named if name == "backward")
    there = next((start for name, start, _ in named if name == "gradient"), 2**62)
    passes = [(start, end) for name, start, end in named if name in ("model", "decoder") and start < begun]
    borders = [start for start, _ in passes] + [begun]
    sizes = [[size for at, size in found if end <= at < stop and abs(size) >= least]
             for (_, end), (_, stop) in zip(passes, pairwise(borders), strict=True)]
    return {**case, "passes": sizes, "backward": [size for at, size in found if begun <= at < there
                                                  and abs(size) >= least],
            "begins": [sum(size for at, size in found if at <= moment) for moment in borders[1:]],
            "highest": max(accumulate(size for at, size in found if at <= ended))}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Cases by chance."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        batch = draw.randint(2, 6)
        found.append({"method": draw.choice(("lora", "full")), "batch": batch, "seq": draw.randint(40, 160),
                      "vocab": draw.choice((2048, draw.randint(1500, 9000) if IS_OLD else draw.randint(1000, 60000))),
                      "mixed": draw.random() < 0.5, "replays": draw.random() < 0.5, "before": draw.random() < 0.25,
                      "chosen": draw.randint(0, batch)})
        if found[-1]["method"] == "full":
            found[-1]["before"] = False
    return found


if __name__ == "__main__":
    cases = drawn(*map(int, sys.argv[-2:])) if len(sys.argv) > 2 else CASES
    told = ""
    if HAS_HEAD:
        probe_trl_preference.as_on_a_gpu()
    elif not IS_OLD:
        import probe_preference
        probe_preference.patched(sys.argv[1])
        for name in ("selective_log_softmax", "entropy_from_logits"):
            assert vars(kto_trainer)[name]
            setattr(kto_trainer, name, vars(probe_preference.dpo_trainer)[name])
        told = f', "axolotl": "{probe_preference.COMMIT}"'
        cases = ([case | {"method": "lora", "mixed": True, "before": False} for case in cases] if len(sys.argv) > 2 else
                 [case for case in CASES if case["method"] == "lora" and case["mixed"] and not case["before"]])
    with redirect_stdout(sys.stderr):
        lines = ",\n ".join(json.dumps(measured(case)) for case in cases)
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}"{told}, "cases": [\n {lines}]}}')
