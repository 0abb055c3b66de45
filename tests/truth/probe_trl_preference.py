"""DPO of TRL 1.16.0: what a real step allocates and frees, from the head to its gradient, and the highest it holds.

    python tests/truth/probe_trl_preference.py > tests/truth/losses/preference-trl-1.16.0.json
    python tests/truth/probe_trl_preference.py SEED COUNT > tests/truth/losses/preference-drawn-trl-1.16.0.json

A CPU runs DPOTrainer's own training step on a small Llama; its profiler gives allocations. TRL's fused head runs as on
a GPU: its Triton launches, whose outputs Python makes, do nothing, and so does the product that is added in fp32 into a
gradient, which CUDA makes without a copy (`kernels/chunked_logprob.py` _addmm_fp32). Kept are signed bytes of whatever
is larger than MANY bytes a token, in three parts: from the end of the policy's decoder until the reference's forward,
from the end of the reference's decoder until backward, and backward until the gradient of the decoder's output is
there; and bytes above those before the step where the reference begins, where backward begins, and the highest until
it ends. All tokens but the first are answers.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from contextlib import redirect_stdout
from itertools import accumulate
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.kernels import chunked_logprob
from trl.trainer import utils

HIDDEN, MANY = 64, 32
UNKNOWN, NAMED = {"unk_token": "w0"}, {"pad_token": "<pad>", "eos_token": "<eos>"}
LOSSES = ("sigmoid", "hinge", "ipo", "apo_zero", "robust", "sppo_hard", "sigmoid_norm")
CASES = tuple({"method": method, "pairs": pairs, "seq": seq, "vocab": vocab, "mixed": mixed, "replays": replays,
               "before": before, "loss": "sigmoid"}
              for method, before in (("lora", False), ("full", False), ("lora", True), ("full", True))
              for pairs, seq, vocab, mixed, replays in (
                  (1, 64, 512, True, False), (2, 48, 40000, False, True), (2, 80, 70000, True, True)))


class Launched:
    """A kernel of Triton whose launch does nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: None


class Torch:
    """Torch, but for products into a buffer that is there, whose values nothing reads: they take minutes on a CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def mm(self, left: Any, right: Any, *, out: Any) -> Any:
        return out


def as_on_a_gpu() -> None:
    """Has the fused head take its way on a GPU."""
    chunked_logprob._use_triton = utils._use_triton = lambda _: True
    chunked_logprob._forward_kernel = chunked_logprob._backward_kernel = Launched()
    chunked_logprob._addmm_fp32 = lambda *_: None
    chunked_logprob.torch = Torch()


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(510)} | {"<pad>": 510, "<eos>": 511}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, **UNKNOWN)), **NAMED)


def model(vocab: int, dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab, hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=4,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
                         tie_word_embeddings=False)
    return LlamaForCausalLM(config).to(dtype)


def rows(pairs: int, seq: int) -> Dataset:
    one = {"prompt_ids": [1], "chosen_ids": [2] * (seq - 1), "rejected_ids": [3] * (seq - 1)}
    return Dataset.from_list([one] * (2 * pairs))


def trainer(case: dict[str, Any]) -> Any:
    where, mixed, full = tempfile.mkdtemp(), case["mixed"], case["method"] == "full"
    args = trl.DPOConfig(output_dir=where, per_device_train_batch_size=case["pairs"], bf16=mixed, use_cpu=True,
                         report_to=[], max_steps=3, save_strategy="no", gradient_checkpointing=case["replays"],
                         max_length=case["seq"], remove_unused_columns=False, disable_tqdm=True,
                         loss_type=[case["loss"]], precompute_ref_log_probs=case["before"])
    dtype = torch.float32 if full and mixed else torch.bfloat16
    lora = None if full else LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    second = model(case["vocab"], dtype) if full and not case["before"] else None
    trl.DPOTrainer._prepare_dataset = lambda self, data, *_, **__: data
    return trl.DPOTrainer(model=model(case["vocab"], dtype), ref_model=second, args=args, peft_config=lora,
                          train_dataset=rows(case["pairs"], case["seq"]), processing_class=tokenizer())


def marked(module: torch.nn.Module) -> None:
    """Marks begin and end of a decoder's forward, and the moment when the gradient of its output is there."""
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with record_function("decoder"):
            found = own(*args, **kwargs)
        if found.last_hidden_state.requires_grad:
            found.last_hidden_state.register_hook(there)
        return found

    module.forward = forward  # type: ignore[method-assign]


def there(grad: torch.Tensor) -> None:
    """Marks the end of the head's backward."""
    with record_function("gradient"):
        pass


def profiled(made: Any) -> tuple[dict[str, list[tuple[int, int]]], list[tuple[int, int]]]:
    """((begin, end) of what is marked in the third step, by name; moments and signed bytes)."""
    base = made.model.get_base_model() if hasattr(made.model, "get_base_model") else made.model
    marked(base.model)
    if made.ref_model is not None:
        marked(made.ref_model.model)
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
        if event.name() in ("decoder", "backward", "gradient"):
            named.setdefault(event.name(), []).append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return ({name: sorted(some) for name, some in named.items()},
            sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]"))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The case, and what its step allocates, frees and holds."""
    made = trainer(case)
    named, found = profiled(made)
    least = MANY * 2 * case["pairs"] * (case["seq"] - 1)
    begun, ended = named["backward"][0]
    second = named["decoder"][1] if len(named["decoder"]) > 1 and named["decoder"][1][0] < begun else None
    parts = {"policy": (named["decoder"][0][1], second[0] if second else begun),
             "reference": (second[1], begun) if second else (0, 0), "backward": (begun, named["gradient"][0][0])}
    sizes = {name: [size for at, size in found if begin <= at < end and abs(size) > least]
             for name, (begin, end) in parts.items()}
    moments = {"begin": second[0] if second else begun, "backward_begin": begun}
    return {**case, **sizes, **{name: sum(size for at, size in found if at <= moment)
                                for name, moment in moments.items()},
            "highest": max(accumulate(size for at, size in found if at <= ended))}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Cases by chance."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        pairs = draw.randint(1, 4)
        seq = draw.randint(2060, 2200) // pairs if draw.random() < 0.1 else draw.randint(40, 200)
        found.append({"method": draw.choice(("lora", "full")), "pairs": pairs, "seq": seq,
                      "vocab": draw.choice((512, 32768, draw.randint(1000, 90000))), "mixed": draw.random() < 0.5,
                      "replays": draw.random() < 0.5, "before": draw.random() < 0.3, "loss": draw.choice(LOSSES)})
    return found


if __name__ == "__main__":
    as_on_a_gpu()
    cases = drawn(int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 1 else CASES
    with redirect_stdout(sys.stderr):
        lines = ",\n ".join(json.dumps(measured(case)) for case in cases)
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}", "cases": [\n {lines}]}}')
