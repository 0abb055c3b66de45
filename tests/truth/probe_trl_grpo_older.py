"""What GRPOTrainer of TRL before 1.15 allocates for log-probabilities and their loss, and in which order a step goes.

    python -P tests/truth/probe_trl_grpo_older.py > tests/truth/trl_grpo/trl-0.24.0.json
    python -P tests/truth/probe_trl_grpo_older.py 7001 > tests/truth/trl_grpo/drawn-trl-0.24.0.json
    python -P tests/truth/probe_trl_grpo_older.py --steps > tests/truth/trl_grpo/steps-trl-0.24.0.json

Run with TRL 0.18.0 (transformers 4.52.3), 0.19.1 (4.53.0), 0.24.0 and 0.27.2 (4.56.1), each in an own environment
beside torch 2.13. Nothing is patched but vLLM and `generate`: these losses are made of PyTorch's own operators.

`losses`: signed bytes of all tensors of half a scored hidden state's size and more, from the end of the last norm until
the loss is there (`forward`), and from there until that norm's gradient is (`backward`), of the second microbatch. A
number draws other cases, on which no work was done. The model's forward is under autocast, and its logits cast to
fp32, where `mixed` is on. `steps`: as `probe_trl_grpo.py` has them; a release that passes through the reference model
within a microbatch "refer"s behind "train".
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from random import Random
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import transformers
import trl
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
UNKNOWN, NAMED = {"unk_token": "w0"}, {"pad_token": "<pad>", "eos_token": "<eos>"}
SEED, DRAWN, OF_STEPS = 20261201, 16, 5


def tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(vocab - 2)} | {"<pad>": vocab - 2, "<eos>": vocab - 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, **UNKNOWN)), **NAMED)


def model(case: dict[str, Any]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=case["vocab"], hidden_size=case["hidden"], intermediate_size=32,
                         num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                         max_position_embeddings=16384, tie_word_embeddings=case.get("tied", False))
    config.architectures, config.use_cache = ["LlamaForCausalLM"], False  # as under checkpoints, and from 0.22 on
    return LlamaForCausalLM(config).to(FORMATS[case["dtype"]])


def trainer(case: dict[str, Any], **changed: Any) -> Any:
    AcceleratorState._reset_state(True)  # or the first case's mixed precision is that of all
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    given = {"per_device_train_batch_size": case["batch"], "num_generations": 2, "beta": case.get("beta", 0.0),
             "loss_type": case.get("loss_type", "bnpo"), "max_completion_length": case["completion"],
             "bf16": case.get("mixed", False)} | changed
    args = trl.GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
                          disable_tqdm=True, logging_strategy="no", gradient_checkpointing=False, **given)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if case.get("lora") else None
    words, folder = tokenizer(min(case["vocab"], 512)), tempfile.mkdtemp()
    own = model(case)
    own.save_pretrained(folder)
    own.config._name_or_path = folder
    return trl.GRPOTrainer(model=own, reward_funcs=[lambda completions, **_: [0.0] * len(completions)], args=args,
                           train_dataset=Dataset.from_list([{"prompt": "w1"}] * 64), processing_class=words,
                           peft_config=lora)


# ---- losses ----------------------------------------------------------------------------------------------------------
def inputs(case: dict[str, Any]) -> dict[str, Any]:
    batch, prompt, completion = case["batch"], case["prompt"], case["completion"]
    made = {"prompt_ids": torch.ones(batch, prompt, dtype=torch.long),
            "prompt_mask": torch.ones(batch, prompt, dtype=torch.long),
            "completion_ids": torch.ones(batch, completion, dtype=torch.long),
            "completion_mask": torch.ones(batch, completion, dtype=torch.long),
            "advantages": torch.ones(batch), "num_items_in_batch": torch.tensor(batch * completion),
            "old_per_token_logps": torch.zeros(batch, completion) if case["old"] else None}
    return made | ({"ref_per_token_logps": torch.zeros(batch, completion)} if case["beta"] else {})


def marked(name: str) -> None:
    with record_function(name):
        pass


def loss(case: dict[str, Any]) -> dict[str, Any]:
    """Events of one microbatch's loss, of the second one."""
    made = trainer(case, per_device_train_batch_size=2)
    made.current_gradient_accumulation_steps = 1
    own = made.model.get_base_model() if case["lora"] else made.model
    wrapped = made.accelerator.prepare_model(made.model, device_placement=False)

    def begun(module: Any, args: Any, output: Any) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: marked("end of backward"))
            marked("begin of forward")

    own.model.norm.register_forward_hook(begun)
    given, found = inputs(case), []
    for number in range(2):
        wrapped.zero_grad()
        if number:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                value = made.compute_loss(wrapped, given)
                marked("end of forward")
                value.backward()
            found = profiler.profiler.kineto_results.events()
        else:
            made.compute_loss(wrapped, given).backward()
    at = {event.name(): event.start_ns() for event in found if "forward" in event.name() or "backward" in event.name()}
    sizes = sorted((event.start_ns(), number, event.nbytes()) for number, event in enumerate(found)
                   if event.name() == "[memory]")
    start, middle, end = at["begin of forward"], at["end of forward"], at["end of backward"]
    least = 2 * case["batch"] * case["completion"] * case["hidden"]
    return {**case, "forward": [size for when, _, size in sizes if start <= when < middle and abs(size) >= least],
            "backward": [size for when, _, size in sizes if middle <= when < end and abs(size) >= least]}


def cases(seed: int, count: int) -> list[dict[str, Any]]:
    random, found = Random(seed), []
    beside = () if trl.__version__.startswith("0.18") else (0.04,)  # there it passes within the loss
    while len(found) < count:
        found.append({
            "batch": random.choice((1, 2, 3, 4)), "prompt": random.choice((1, 7, 40)),
            "completion": random.choice((33, 64, 150)), "hidden": random.choice((32, 64)),
            "vocab": random.choice((4000, 9000, 21000)), "dtype": random.choice(("fp32", "bf16")),
            "mixed": random.choice((True, False)), "lora": random.choice((True, False)),
            "tied": random.choice((True, False)), "beta": random.choice((0.0, *beside)),
            "old": random.choice((True, False)), "loss_type": random.choice(("grpo", "bnpo", "dr_grpo"))})
    return found


FIRST: list[dict[str, Any]] = [
    {"batch": batch, "prompt": 16, "completion": completion, "hidden": 32, "vocab": 4000, "dtype": dtype,
     "mixed": mixed, "lora": lora, "tied": False, "beta": beta, "old": False, "loss_type": "bnpo"}
    for batch, completion, dtype, mixed, lora, beta in (
        (2, 64, "fp32", True, False, 0.0), (2, 64, "bf16", True, False, 0.0), (1, 64, "bf16", True, False, 0.0),
        (2, 64, "bf16", False, False, 0.0), (1, 64, "bf16", False, True, 0.0), (2, 150, "fp32", False, False, 0.0),
        (3, 64, "bf16", True, False, 0.0), (2, 64, "bf16", False, True, 0.0))]


# ---- steps -----------------------------------------------------------------------------------------------------------
class Standing:
    """Stand-in for the client of a server of vLLM."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def generate(self, prompts: Any, n: int = 1, **_: Any) -> Any:
        self.events.append(f"generate {len(prompts) * n}")
        return [[1]] * (len(prompts) * n)


def watched(module: Any, events: list[str], name: Any) -> None:
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if "logits_to_keep" in kwargs:
            events.append(f"{name()} {len(kwargs['input_ids'])}")
        return own(*args, **kwargs)

    module.forward = forward


def steps(case: dict[str, Any]) -> dict[str, Any]:
    """Events of the second step of a run, which is the longer of one optimizer step and one generation."""
    events: list[str] = []
    cycle = case["per_generation"] * case["iterations"]
    seen = max(cycle, case["accumulated"])
    small = {"vocab": 512, "hidden": 16, "dtype": "fp32", "completion": 4, **case}
    made = trainer(small, num_generations=2, steps_per_generation=case["per_generation"],
                   num_iterations=case["iterations"], gradient_accumulation_steps=case["accumulated"],
                   max_steps=2 * seen // case["accumulated"] + 1)
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
    if case["vllm"]:
        made.use_vllm, made.vllm_mode, made.vllm_client = True, "server", Standing(events)
        made._last_loaded_step, made.guided_decoding_regex = -1, None
        made._move_model_to_vllm = lambda: events.append("sync")
        made.vllm_importance_sampling_correction = False
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
                "vllm": random.choice((True, False))}
        cycle = case["per_generation"] * case["iterations"]
        fits = cycle % case["accumulated"] == 0 or case["accumulated"] % cycle == 0
        if case["batch"] * case["per_generation"] % 2 == 0 and fits:
            found.append(case)
    return found


def main() -> None:
    asks = "--steps" in sys.argv
    fresh = next((int(word) for word in sys.argv if word.isdigit()), None)
    first = [] if fresh is not None else FIRST
    seed = fresh if fresh is not None else SEED
    chosen = cases_of_steps(seed + 1, OF_STEPS) if asks else [*first, *cases(seed, DRAWN)]
    lines = ",\n ".join(json.dumps((steps if asks else loss)(case)) for case in chosen)
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}", "transformers": '
          f'"{transformers.__version__}", "{"steps" if asks else "losses"}": [\n {lines}]}}')


if __name__ == "__main__":
    main()
