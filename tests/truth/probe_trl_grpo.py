"""What GRPOTrainer of TRL 1.16.0 allocates for log-probabilities and their loss, and in which order a step goes.

    python -P tests/truth/probe_trl_grpo.py > tests/truth/trl_grpo/trl-1.16.0-torch-2.13.0.json
    python -P tests/truth/probe_trl_grpo.py --steps > tests/truth/trl_grpo/steps-trl-1.16.0.json

`-P`, since `tests/truth/vllm` is no package. A CPU runs the trainer's own `compute_loss` on small Llamas. On CUDA a
token's statistics are made by Triton's kernels, which a CPU does not run: launches that do nothing stand in for them,
and sums of gradients are made in place as CUDA makes them (`kernels/chunked_logprob.py` _addmm_fp32); all tensors are
made in Python.

`losses`: signed bytes of all tensors of half a scored hidden state's size and more, from the end of the last norm until
the loss is there (`forward`), and from there until that norm's gradient is (`backward`). With `--steps` the trainer
trains, and `steps` says what one rank does in its second step, in order: "sync" (weights go to vLLM), and rows that it
lets "generate", of each pass that is "score"d, of the reference model ("refer"), of each microbatch ("train"), and
"step" of the optimizer. A stand-in for vLLM, and for `generate`, gives answers of one token.
"""

from __future__ import annotations

import json
import sys
import tempfile
from random import Random
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl.kernels import chunked_logprob
from trl.trainer import grpo_trainer, utils

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
UNKNOWN, NAMED = {"unk_token": "w0"}, {"pad_token": "<pad>", "eos_token": "<eos>"}
SEED, DRAWN = 20261130, 48


class Launched:
    """A kernel of Triton whose launch does nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: None


def summed(acc: Any, a: Any, b: Any) -> None:
    """The sum in place that CUDA makes; its value is not read."""
    acc.zero_()


def patched() -> None:
    for module in (chunked_logprob, utils):
        vars(module)["_use_triton"] = lambda device: True
    vars(chunked_logprob).update(_forward_kernel=Launched(), _backward_kernel=Launched(), _addmm_fp32=summed)


def tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(vocab - 2)} | {"<pad>": vocab - 2, "<eos>": vocab - 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, **UNKNOWN)), **NAMED)


def model(case: dict[str, Any]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=case["vocab"], hidden_size=case["hidden"], intermediate_size=32,
                         num_hidden_layers=case.get("layers", 1), num_attention_heads=4,
                         num_key_value_heads=case.get("kv_heads", 4), max_position_embeddings=16384,
                         tie_word_embeddings=case.get("tied", False))
    return LlamaForCausalLM(config).to(FORMATS[case["dtype"]])


def trainer(case: dict[str, Any], **changed: Any) -> Any:
    given = {"per_device_train_batch_size": case["batch"], "num_generations": 2, "beta": case.get("beta", 0.0),
             "loss_type": case.get("loss_type", "dapo"), "max_completion_length": case["completion"]} | changed
    args = trl.GRPOConfig(output_dir=tempfile.mkdtemp(), bf16=case.get("mixed", False), use_cpu=True, report_to=[],
                          save_strategy="no", disable_tqdm=True, logging_strategy="no", gradient_checkpointing=False,
                          **given)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if case.get("lora") else None
    words = tokenizer(min(case["vocab"], 512))
    vars(grpo_trainer)["create_model_from_path"] = lambda *_, **__: model(case)
    return trl.GRPOTrainer(model=model(case), reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
                           args=args, train_dataset=Dataset.from_list([{"prompt": "w1"}] * 64), processing_class=words,
                           peft_config=lora)


# ---- losses ----------------------------------------------------------------------------------------------------------
def inputs(case: dict[str, Any]) -> dict[str, Any]:
    batch, prompt, completion = case["batch"], case["prompt"], case["completion"]
    made = {"prompt_ids": torch.ones(batch, prompt, dtype=torch.long),
            "prompt_mask": torch.ones(batch, prompt, dtype=torch.long),
            "completion_ids": torch.ones(batch, completion, dtype=torch.long),
            "completion_mask": torch.ones(batch, completion, dtype=torch.long),
            "advantages": torch.ones(batch), "num_items_in_batch": torch.tensor(batch * completion)}
    if case["beta"]:
        made["ref_per_token_logps"] = torch.zeros(batch, completion)
    if case["old"]:
        made["old_per_token_logps"] = torch.zeros(batch, completion)
    return made


def marked(name: str) -> None:
    with record_function(name):
        pass


def loss(case: dict[str, Any]) -> dict[str, Any]:
    """Events of one microbatch's loss, of the second one."""
    made = trainer(case, per_device_train_batch_size=2)
    made.current_gradient_accumulation_steps = 1
    own = made.model.get_base_model() if case["lora"] else made.model

    def begun(module: Any, args: Any, output: Any) -> None:
        output.register_hook(lambda grad: marked("end of backward"))
        marked("begin of forward")

    own.model.norm.register_forward_hook(begun)
    given, found = inputs(case), []
    for number in range(2):
        made.model.zero_grad()
        if number:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                value = made.compute_loss(made.model, given)
                marked("end of forward")
                value.backward()
            found = profiler.profiler.kineto_results.events()
        else:
            made.compute_loss(made.model, given).backward()
    at = {event.name(): event.start_ns() for event in found if "forward" in event.name() or "backward" in event.name()}
    sizes = sorted((event.start_ns(), number, event.nbytes()) for number, event in enumerate(found)
                   if event.name() == "[memory]")
    least = 2 * case["batch"] * case["completion"] * case["hidden"]
    start, middle, end = at["begin of forward"], at["end of forward"], at["end of backward"]
    return {**case, "forward": [size for when, _, size in sizes if start <= when < middle and abs(size) >= least],
            "backward": [size for when, _, size in sizes if middle <= when < end and abs(size) >= least]}


def cases(seed: int, count: int) -> list[dict[str, Any]]:
    random, found = Random(seed), []
    for _ in range(count):
        dtype = random.choice(("fp32", "bf16"))
        found.append({
            "batch": random.choice((1, 2, 3, 4)), "prompt": random.choice((1, 7, 40)),
            "completion": random.choice((33, 64, 100)), "hidden": random.choice((64, 128)),
            "vocab": random.choice((2000, 9000, 40000, 70000)), "dtype": dtype,
            "mixed": random.choice((True, False)), "lora": random.choice((True, False)),
            "tied": random.choice((True, False)), "beta": random.choice((0.0, 0.04)),
            "old": random.choice((True, False)),
            "loss_type": random.choice(("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo"))})
    return found


FIRST: list[dict[str, Any]] = [
    {"batch": batch, "prompt": 16, "completion": completion, "hidden": 64, "vocab": vocab, "dtype": dtype,
     "mixed": mixed, "lora": lora, "tied": False, "beta": 0.0, "old": False, "loss_type": "dapo"}
    for batch, completion, vocab, dtype, mixed, lora in (
        (2, 48, 5000, "fp32", True, False), (2, 48, 5000, "bf16", False, False), (2, 48, 5000, "bf16", True, True),
        (1, 64, 40000, "bf16", True, False), (2, 2100, 40000, "fp32", True, False), (1, 48, 5000, "fp32", False, True))]


# ---- steps -----------------------------------------------------------------------------------------------------------
class Standing:
    """Stand-in for VLLMGeneration."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def sync_weights(self) -> None:
        self.events.append("sync")

    def generate(self, prompts: Any, **_: Any) -> Any:
        self.events.append(f"generate {len(prompts)}")
        return prompts, [[1]] * len(prompts), [[[-1.0]]] * len(prompts), None


def watched(module: Any, events: list[str], name: Any) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("fused_lm_head"):
            events.append(f"{name()} {len(kwargs['input_ids'])}")
        return own(*args, **kwargs)

    module.forward = forward


def steps(case: dict[str, Any]) -> dict[str, Any]:
    """Events of the second step of a run, which is the longer of one optimizer step and one generation."""
    events: list[str] = []
    cycle = case["per_generation"] * case["iterations"]
    seen = max(cycle, case["accumulated"])
    vars(grpo_trainer)["VLLMGeneration"] = lambda **_: Standing(events)
    small = {"vocab": 512, "hidden": 16, "dtype": "fp32", "completion": 4, **case}
    made = trainer(small, num_generations=2, steps_per_generation=case["per_generation"], use_vllm=case["vllm"],
                   num_iterations=case["iterations"], gradient_accumulation_steps=case["accumulated"],
                   max_steps=2 * seen // case["accumulated"] + 1,
                   vllm_importance_sampling_correction=case["correction"])
    own = made.model.get_base_model() if case["lora"] else made.model

    def passing() -> str:
        off = any(getattr(module, "disable_adapters", False) is True for module in own.modules())
        return "train" if torch.is_grad_enabled() else "refer" if off else "score"

    def answered(input_ids: Any, **_: Any) -> Any:
        events.append(f"generate {len(input_ids)}")
        return torch.cat([input_ids, torch.ones_like(input_ids[:, :1])], dim=1)

    watched(own, events, passing)
    if made.ref_model is not None:
        watched(made.ref_model, events, lambda: "refer")
    made.model.generate = answered
    made.add_callback(type("Stepped", (TrainerCallback,), {
        "on_optimizer_step": lambda self, *_, **__: events.append("step")})())
    made.remove_callback(PrinterCallback)
    made.train()
    trained = [number for number, one in enumerate(events) if one.startswith("train")]
    begins = [_begin(events, trained[number * seen]) for number in (1, 2)]
    return {**case, "steps": events[begins[0]:begins[1]]}


def _begin(events: list[str], first: int) -> int:
    """Place where what leads to a microbatch begins: behind the optimizer step before it."""
    return next(number for number in range(first, 0, -1) if events[number - 1] == "step")


def cases_of_steps(seed: int, count: int) -> list[dict[str, Any]]:
    random, found = Random(seed), []
    while len(found) < count:
        case = {"batch": random.choice((1, 2, 4)), "accumulated": random.choice((1, 2, 4)),
                "per_generation": random.choice((1, 2, 4)), "iterations": random.choice((1, 1, 2)),
                "beta": random.choice((0.0, 0.1)), "lora": random.choice((True, False)),
                "vllm": random.choice((True, False)), "correction": random.choice((True, True, False))}
        cycle = case["per_generation"] * case["iterations"]
        fits = cycle % case["accumulated"] == 0 or case["accumulated"] % cycle == 0
        if case["batch"] * case["per_generation"] % 2 == 0 and fits:
            found.append(case)
    return found


if __name__ == "__main__":
    patched()
    made, name = (steps, "steps") if "--steps" in sys.argv else (loss, "losses")
    chosen = cases_of_steps(SEED + 1, DRAWN) if made is steps else [*FIRST, *cases(SEED, DRAWN)]
    lines = ",\n ".join(json.dumps(made(case)) for case in chosen)
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}", "{name}": [\n {lines}]}}')
