r"""DPO of TRL 0.24.0: what a real step allocates and frees of rows of logits, and the highest it holds.

    PYTHONPATH=TRL python tests/truth/probe_trl_pairs.py > tests/truth/losses/preference-trl-0.24.0.json
    PYTHONPATH=TRL python tests/truth/probe_trl_pairs.py SEED COUNT > \
        tests/truth/losses/preference-drawn-trl-0.24.0.json

TRL: a folder with TRL 0.24.0 (its checks of installed packages are undone: transformers 5 answers them in pairs). A CPU
runs DPOTrainer's own training step on a small Llama; its profiler gives allocations. Kept are signed bytes of a row of
logits in 16 bits and more, in three parts: from the policy's forward until the reference's, from there until backward,
and backward; and bytes above those before the step where the reference begins and ends, where backward begins, and the
highest until it ends. All tokens but the first are answers. Parts begin where a model has returned.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from contextlib import redirect_stdout
from itertools import accumulate
from typing import Any

from trl import import_utils

for _name, _value in list(vars(import_utils).items()):
    if _name.startswith("_") and isinstance(_value, tuple):
        setattr(import_utils, _name, _value[0])

import torch  # noqa: E402 - what follows asks TRL which packages there are
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402

UNKNOWN, NAMED = {"unk_token": "w0"}, {"pad_token": "<pad>", "eos_token": "<eos>"}
LOSSES = ("sigmoid", "hinge", "ipo", "apo_zero", "robust", "sppo_hard", "apo_down")
CASES = tuple({"method": method, "pairs": pairs, "seq": seq, "vocab": vocab, "mixed": mixed, "replays": replays,
               "before": before, "loss": "sigmoid"}
              for method, before in (("lora", False), ("full", False), ("lora", True))
              for pairs, seq, vocab, mixed, replays in (
                  (1, 64, 4096, True, False), (2, 48, 2048, False, True), (2, 80, 4096, True, True),
                  (1, 72, 2048, False, False)))


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(510)} | {"<pad>": 510, "<eos>": 511}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, **UNKNOWN)), **NAMED)


def model(vocab: int, dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
                         tie_word_embeddings=False)
    made = LlamaForCausalLM(config).to(dtype)
    vars(made)["warnings_issued"] = {}  # of transformers 4
    return made


def trainer(case: dict[str, Any]) -> Any:
    mixed, full, seq = case["mixed"], case["method"] == "full", case["seq"]
    args = DPOConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=case["pairs"], bf16=mixed, use_cpu=True,
                     report_to=[], max_steps=3, save_strategy="no", gradient_checkpointing=case["replays"],
                     max_length=seq, max_prompt_length=None, remove_unused_columns=False, disable_tqdm=True,
                     loss_type=[case["loss"]], precompute_ref_log_probs=case["before"])
    dtype = torch.float32 if full and mixed else torch.bfloat16
    lora = None if full else LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    second = model(case["vocab"], dtype) if full and not case["before"] else None
    one = {"prompt_input_ids": [1], "chosen_input_ids": [2] * (seq - 1), "rejected_input_ids": [3] * (seq - 1)}
    DPOTrainer._prepare_dataset = lambda self, data, *_, **__: data
    return DPOTrainer(model=model(case["vocab"], dtype), ref_model=second, args=args, peft_config=lora,
                      train_dataset=Dataset.from_list([one] * (2 * case["pairs"])), processing_class=tokenizer())


def marked(module: torch.nn.Module) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with record_function("model"):
            return own(*args, **kwargs)

    module.forward = forward  # type: ignore[method-assign]


def profiled(made: Any) -> tuple[dict[str, list[tuple[int, int]]], list[tuple[int, int]]]:
    """((begin, end) of what is marked in the third step, by name; moments and signed bytes)."""
    marked(made.model.get_base_model() if hasattr(made.model, "get_base_model") else made.model)
    if made.ref_model is not None:
        marked(made.ref_model)
    own, backward, number, found = made.training_step, made.accelerator.backward, iter(range(9)), []

    def undone(*args: Any, **kwargs: Any) -> None:
        with record_function("backward"):
            backward(*args, **kwargs)

    def step(*args: Any, **kwargs: Any) -> Any:
        if next(number) < 2:
            return own(*args, **kwargs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            loss = own(*args, **kwargs)
        found.extend(profiler.profiler.kineto_results.events())
        return loss

    made.accelerator.backward, made.training_step = undone, step
    made.train()
    named: dict[str, list[tuple[int, int]]] = {}
    for event in found:
        if event.name() in ("model", "backward"):
            named.setdefault(event.name(), []).append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return ({name: sorted(some) for name, some in named.items()},
            sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]"))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The case, and what its step allocates, frees and holds."""
    named, found = profiled(trainer(case))
    least = 2 * (case["seq"] - 1) * case["vocab"]
    begun, ended = named["backward"][0]
    second = named["model"][1] if len(named["model"]) > 1 and named["model"][1][0] < begun else None
    parts = {"policy": (named["model"][0][1], second[0] if second else begun),
             "reference": (second[1], begun) if second else (0, 0), "backward": (begun, 2**62)}
    sizes = {name: [size for at, size in found if begin <= at < end and abs(size) >= least]
             for name, (begin, end) in parts.items()}
    moments = {"begin": second[0] if second else begun, "end": second[1] if second else begun, "backward_begin": begun}
    return {**case, **sizes, **{name: sum(size for at, size in found if at <= moment)
                                for name, moment in moments.items()},
            "highest": max(accumulate(size for at, size in found if at <= ended))}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Cases by chance."""
    draw = random.Random(seed)
    return [{"method": draw.choice(("lora", "full")), "pairs": draw.randint(1, 4), "seq": draw.randint(40, 200),
             "vocab": draw.choice((2048, draw.randint(1500, 9000))), "mixed": draw.random() < 0.5,
             "replays": draw.random() < 0.5, "before": draw.random() < 0.25, "loss": draw.choice(LOSSES)}
            for _ in range(count)]


if __name__ == "__main__":
    cases = drawn(int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 1 else CASES
    with redirect_stdout(sys.stderr):
        lines = ",\n ".join(json.dumps(measured(case)) for case in cases)
    print(f'{{"torch": "{torch.__version__}", "trl": "0.24.0", "cases": [\n {lines}]}}')
