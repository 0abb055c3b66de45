"""DPO and ORPO of axolotl: what a real step allocates and frees of whole logits, from the head to their gradient.

    PYTHONPATH=TRL python tests/truth/probe_preference.py CLONE > tests/truth/losses/preference-axolotl-067b021c.json

CLONE: a git directory of axolotl-ai-cloud/axolotl; TRL: a folder with TRL 1.8.0, which it pins. A CPU runs DPOTrainer's
and ORPOTrainer's own training step on a tiny Llama whose vocabulary is far larger than all else; its profiler gives
allocations. The two functions of `monkeypatch/trainer/utils.py` that axolotl puts in the place of TRL's
(`loaders/patch_manager.py` _apply_trl_trainer_utils_patches) run as they are at COMMIT, but for Triton's launches,
which do nothing: all of their tensors are made in Python. Kept are signed bytes of a row of logits in 16 bits and more,
in three parts: from the policy's forward until the reference's (DPO alone), from there until the loss is there, and
backward. All tokens but the first are answers. Beside them: bytes that a step of a model with a small vocabulary holds
where the reference's forward begins and ends, and where backward begins, above those before the step; and those of a
reward model, RewardTrainer's, where backward begins and at the highest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import trl
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl.experimental.orpo import ORPOConfig, ORPOTrainer, orpo_trainer
from trl.trainer import dpo_trainer

COMMIT, FILE = "067b021c", "src/axolotl/monkeypatch/trainer/utils.py"
VOCAB = 8192
UNKNOWN, NAMED = {"unk_token": "w0"}, {"pad_token": "<pad>", "eos_token": "<eos>"}
CASES = tuple((method, pairs, seq, mixed) for method in ("lora", "full", "odds") for pairs, seq in ((1, 64), (2, 48))
              for mixed in (True, False))


class Launched:
    """A kernel of Triton whose launch does nothing."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: None


def registered(_: str) -> Any:
    def decorate(function: Any) -> Any:
        function.register_fake = lambda fake: fake
        return function

    return decorate


def patched(clone: str) -> None:
    """Puts axolotl's functions where its own patch puts them."""
    text = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{FILE}"], capture_output=True, text=True,  # noqa: S607 - git
                          check=True).stdout
    triton, language, registry = (ModuleType(name) for name in (
        "triton", "triton.language", "axolotl.kernels.op_registry"))
    vars(triton).update(jit=Launched, next_power_of_2=lambda k: 1 << (k - 1).bit_length(), language=language)
    vars(language).update(constexpr=int)
    vars(registry).update(register_kernel_op=registered)
    assert text.count("logits.is_cuda") == 2
    scope: dict[str, Any] = {}
    with patch.dict(sys.modules, {module.__name__: module for module in (
            triton, language, ModuleType("axolotl"), ModuleType("axolotl.kernels"), registry)}):
        exec(text.replace("logits.is_cuda", "True"), scope)  # noqa: S102 - the functions are what is measured
    for name in ("selective_log_softmax", "entropy_from_logits"):
        assert name in vars(dpo_trainer)
        setattr(dpo_trainer, name, scope[name])
    assert orpo_trainer.selective_log_softmax
    orpo_trainer.selective_log_softmax = scope["selective_log_softmax"]


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<eos>": VOCAB - 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, **UNKNOWN)), **NAMED)


def model(dtype: torch.dtype, small: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    vocab, hidden, width, layers = (512, 64, 128, 4) if small else (VOCAB, 16, 32, 2)
    config = LlamaConfig(vocab_size=vocab, hidden_size=hidden, intermediate_size=width, num_hidden_layers=layers,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
                         tie_word_embeddings=False)
    return LlamaForCausalLM(config).to(dtype)


def rows(pairs: int, seq: int) -> Dataset:
    one = {"prompt_ids": [1], "chosen_ids": [2] * (seq - 1), "rejected_ids": [3] * (seq - 1)}
    return Dataset.from_list([one] * (2 * pairs))


def trainer(method: str, pairs: int, seq: int, *, mixed: bool, small: bool = False, replays: bool = False) -> Any:
    where = tempfile.mkdtemp()
    args = trl.DPOConfig(output_dir=where, per_device_train_batch_size=pairs, bf16=mixed, use_cpu=True, report_to=[],
                         max_steps=3, save_strategy="no", gradient_checkpointing=replays, max_length=seq,
                         remove_unused_columns=False, disable_tqdm=True)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if method == "lora" else None
    dtype = torch.bfloat16 if method == "lora" or not mixed else torch.float32
    made = [model(dtype, small), None if lora else model(dtype, small)]
    trl.DPOTrainer._prepare_dataset = lambda self, data, *_, **__: data
    return trl.DPOTrainer(model=made[0], ref_model=made[1], args=args, train_dataset=rows(pairs, seq),
                          processing_class=tokenizer(), peft_config=lora)


def odds(pairs: int, seq: int, *, mixed: bool) -> Any:
    """Trainer of ORPO with adapters."""
    args = ORPOConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=pairs, bf16=mixed, use_cpu=True,
                      report_to=[], max_steps=3, save_strategy="no", gradient_checkpointing=False, max_length=seq,
                      remove_unused_columns=False, disable_tqdm=True)
    one: dict[str, list[int]] = {"prompt_input_ids": [1], "prompt_attention_mask": [1]}
    for kind in ("chosen", "rejected"):
        one |= {f"{kind}_input_ids": [1] + [2] * (seq - 1), f"{kind}_attention_mask": [1] * seq,
                f"{kind}_labels": [-100] + [2] * (seq - 1)}
    ORPOTrainer.tokenize_row = lambda *_, **__: one
    adapted = get_peft_model(model(torch.bfloat16, False), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    texts = Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}] * (2 * pairs))
    return ORPOTrainer(model=adapted, args=args, train_dataset=texts, processing_class=tokenizer())


def marked(module: torch.nn.Module, name: str) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return own(*args, **kwargs)

    module.forward = forward  # type: ignore[method-assign]


class Steps:
    """Training steps of a trainer, the third under the profiler."""

    def __init__(self, own: Any) -> None:
        self.own, self.number, self.found = own, 0, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.number += 1
        if self.number < 3:
            return self.own(*args, **kwargs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            loss = self.own(*args, **kwargs)
        self.found = profiler.profiler.kineto_results.events()
        return loss


def profiled(made: Any, *, method: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(beginning and end of the policy's forward, the reference's, and backward; moments and signed bytes)."""
    marked(made.model.get_base_model() if method == "lora" else made.model, "forward of a model")
    if getattr(made, "ref_model", None) is not None:
        marked(made.ref_model, "forward of a model")
    backward = made.accelerator.backward

    def undone(*args: Any, **kwargs: Any) -> None:
        with record_function("backward"):
            backward(*args, **kwargs)

    made.accelerator.backward = undone
    made.training_step = steps = Steps(made.training_step)
    made.train()
    named = sorted((event.start_ns(), event.start_ns() + event.duration_ns(), event.name()) for event in steps.found
                   if event.name() in ("forward of a model", "backward"))
    found = sorted((event.start_ns(), event.nbytes()) for event in steps.found if event.name() == "[memory]")
    return [(start, end) for start, end, _ in named], found


def measured(method: str, pairs: int, seq: int, *, mixed: bool) -> dict[str, Any]:
    made = odds(pairs, seq, mixed=mixed) if method == "odds" else trainer(method, pairs, seq, mixed=mixed)
    named, found = profiled(made, method="full" if method == "full" else "lora")
    least = 2 * (seq - 1) * VOCAB
    starts = [start for start, _ in named] + [2**62]
    parts = [[size for at, size in found if begin <= at < end and abs(size) >= least]
             for begin, end in pairwise(starts)]
    return {"method": method, "pairs": pairs, "seq": seq, "vocab": VOCAB, "mixed": mixed,
            **dict(zip(("policy", "backward") if method == "odds" else ("policy", "reference", "backward"), parts,
                       strict=True))}


def held(method: str, *, mixed: bool, replays: bool) -> dict[str, Any]:
    named, found = profiled(trainer(method, 1, 64, mixed=mixed, small=True, replays=replays), method=method)
    moments = {"begin": named[1][0], "end": named[1][1], "backward": named[2][0]}
    return {"method": method, "mixed": mixed, "replays": replays,
            **{name: sum(size for at, size in found if at <= moment) for name, moment in moments.items()}}


def rewards() -> dict[str, int]:
    """Parameters of a reward model, and bytes of a step of its trainer."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, num_labels=1,
                         tie_word_embeddings=False, pad_token_id=510)
    args = trl.RewardConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=1, bf16=False, use_cpu=True,
                            report_to=[], max_steps=3, save_strategy="no", gradient_checkpointing=False, max_length=64,
                            remove_unused_columns=False, disable_tqdm=True)
    trl.RewardTrainer._prepare_dataset = lambda self, data, *_, **__: data
    pairs = Dataset.from_list([{"chosen_ids": [2] * 64, "rejected_ids": [3] * 64}] * 2)
    made = trl.RewardTrainer(model=LlamaForSequenceClassification(config).to(torch.bfloat16), args=args,
                             train_dataset=pairs, processing_class=tokenizer())
    named, found = profiled(made, method="full")
    return {"parameters": sum(each.numel() for each in made.model.parameters()),
            "backward": sum(size for at, size in found if at <= named[1][0]),
            "highest": max(accumulate(size for _, size in found))}


if __name__ == "__main__":
    patched(sys.argv[1])
    lines = ",\n ".join(json.dumps(measured(*case[:3], mixed=case[3])) for case in CASES)
    steps = ",\n ".join(json.dumps(held(method, mixed=mixed, replays=replays)) for method in ("lora", "full")
                        for mixed in (True, False) for replays in (False, True))
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}", "axolotl": "{COMMIT}", '
          f'"cases": [\n {lines}],\n"rewards": {json.dumps(rewards())},\n"steps": [\n {steps}]}}')
