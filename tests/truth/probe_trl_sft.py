"""What SFTTrainer of TRL 1.16.0 allocates for its loss: its head scores the tokens whose labels count.

    python -P tests/truth/probe_trl_sft.py > tests/truth/losses/sft-drawn-trl-1.16.0.json

`-P`, since `tests/truth/vllm` is no package. A CPU runs the trainer's own `compute_loss` on small Llamas, as
`probe_trl_grpo.py` says, whose stand-ins for Triton's kernels are used; products
of tiles are not made. Cases are drawn by a seed; none is drawn again
because of what came out. `scored`: labels that count, the last ones of a sequence, 0 for all; `shared`: labels are
shifted before, as they are where ranks share sequences.
`losses`: signed bytes of all tensors of half a scored hidden state's size and more, from the end of the last norm until
the loss is there (`forward`), and from there until that norm's gradient is (`backward`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from torch.profiler import ProfilerActivity, profile
from trl.trainer import grpo_trainer  # noqa: F401 - before this folder is searched

sys.path.append(str(Path(__file__).parent))
import probe_trl_grpo as grpo

SEED, COUNT = 20270203, 44


def trainer(case: dict[str, Any]) -> Any:
    args = trl.SFTConfig(output_dir=tempfile.mkdtemp(), bf16=case["mixed"], use_cpu=True, report_to=[],
                         save_strategy="no", disable_tqdm=True, logging_strategy="no", gradient_checkpointing=False,
                         per_device_train_batch_size=case["batch"], max_length=None)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if case["lora"] else None
    rows = Dataset.from_list([{"input_ids": [1] * 8}] * 64)
    return trl.SFTTrainer(model=grpo.model(case), args=args, train_dataset=rows, peft_config=lora,
                          processing_class=grpo.tokenizer(min(case["vocab"], 512)))


def inputs(case: dict[str, Any]) -> dict[str, Any]:
    ids = torch.ones(case["batch"], case["seq"], dtype=torch.long)
    labels = ids.clone()
    labels[:, :case["seq"] - (case["scored"] or case["seq"])] = -100
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return given | ({"shift_labels": labels} if case["shared"] else {"labels": labels})


def loss(case: dict[str, Any]) -> dict[str, Any]:
    """Events of one microbatch's loss, of the second one."""
    made = trainer(case)
    made.current_gradient_accumulation_steps = 1
    model = made.accelerator.prepare_model(made.model)  # whose forward is under autocast, as the trainer's loop has it
    own, found = made.model.get_base_model() if case["lora"] else made.model, []

    def begun(module: Any, args: Any, output: Any) -> None:
        output.register_hook(lambda grad: grpo.marked("end of backward"))
        grpo.marked("begin of forward")

    own.model.norm.register_forward_hook(begun)
    for number in range(2):
        made.model.zero_grad()
        if number:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                value = made.compute_loss(model, inputs(case))
                grpo.marked("end of forward")
                value.backward()
            found = profiler.profiler.kineto_results.events()
        else:
            made.compute_loss(model, inputs(case)).backward()
    at = {event.name(): event.start_ns() for event in found if "forward" in event.name() or "backward" in event.name()}
    sizes = sorted((event.start_ns(), number, event.nbytes()) for number, event in enumerate(found)
                   if event.name() == "[memory]")
    least = 2 * case["batch"] * (case["scored"] or case["seq"] - 1) * case["hidden"]
    start, middle, end = at["begin of forward"], at["end of forward"], at["end of backward"]
    return {**case, "forward": [size for when, _, size in sizes if start <= when < middle and abs(size) >= least],
            "backward": [size for when, _, size in sizes if middle <= when < end and abs(size) >= least]}


def cases(seed: int, count: int) -> list[dict[str, Any]]:
    random, found = Random(seed), []
    for _ in range(count):
        seq = random.choice((33, 64, 100, 200))
        found.append({
            "batch": random.choice((1, 2, 3, 4)), "seq": seq, "scored": random.choice((0, 0, seq // 2)),
            "hidden": random.choice((64, 128)), "vocab": random.choice((2000, 9000, 40000, 70000)),
            "dtype": random.choice(("fp32", "bf16")), "mixed": random.choice((True, False)),
            "lora": random.choice((True, False)), "tied": random.choice((True, False)),
            "shared": random.choice((False, False, True))})
    return found


def unmultiplied(call: Any) -> Any:
    """Products into a buffer that is there leave it as it is: 16 bits are slow on a CPU, and nobody reads them."""
    return lambda *given, out=None, **named: call(*given, **named) if out is None else out


def main() -> None:
    grpo.patched()
    vars(torch)["mm"] = unmultiplied(torch.mm)
    rows = [loss(case) for case in cases(SEED, COUNT)]
    found = {"trl": trl.__version__, "torch": torch.__version__.partition("+")[0], "losses": rows}
    text = json.dumps(found).replace('{"batch"', '\n{"batch"')
    print(text)


if __name__ == "__main__":
    main()
