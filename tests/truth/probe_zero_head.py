"""What DeepSpeed's ZeRO-3 sends where TRL's head reads its weight itself, on one CPU.

    python -P tests/truth/probe_zero_head.py > tests/truth/deepspeed/drawn-head-0.19.6.json

`-P`, since `tests/truth/vllm` is no package. DeepSpeed 0.19.6 as released around a small Llama of transformers in bf16
with the head of TRL 1.16.0 (`trainer/utils.py` add_fused_lm_head), and its stand-ins for kernels as in
`probe_trl_sft.py`; the process group is torch's fake one, of which rank 0 is run. Cases are drawn by a seed; none is
drawn again because of what came out.
`microbatches`: collectives and the bytes of their largest tensor of two microbatches of the third step; `step`: of its
update.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
from pathlib import Path

import torch
import trl  # noqa: F401
from trl.trainer import grpo_trainer  # noqa: F401 - before this folder is searched

sys.path.append(str(Path(__file__).parent))
import probe_trl_grpo as grpo
from json_lines import with_cases
from oracle.apart import run_apart
from probe_trl_sft import unmultiplied

SEED, COUNT = 20270219, 40
CALLS = []


def drawn():
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        heads = rng.choice((2, 3, 4))
        found[f"h{number}"] = {
            "ranks": rng.choice((1, 2, 2, 3, 4, 8)), "checkpoint": rng.choice((True, False)),
            "lora": rng.choice((0, 0, 0, 4)), "seq": rng.choice((8, 16)),
            "model": {"hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": heads,
                      "head_dim": 64, "intermediate_size": rng.choice((400, 512)),
                      "num_hidden_layers": rng.choice((1, 2, 3, 5)), "vocab_size": rng.choice((503, 1000, 4000)),
                      "tie_word_embeddings": rng.random() < 0.25},
            "options": {"reduce_bucket_size": rng.choice((100_000, 300_000, 2_000_000)),
                        "stage3_prefetch_bucket_size": rng.choice((0, 50_000, 200_000)),
                        "stage3_param_persistence_threshold": rng.choice((0, 1_000)),
                        "stage3_max_reuse_distance": rng.choice((0, 300_000, 1_000_000_000))}}
    return found


def prepare():
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345",
                   "RANK": "0"}
    import torch.distributed as dist
    logging.disable(logging.CRITICAL)

    def noting(name, call):
        def noted(*given, **named):
            tensors = [x for x in (*given, *named.values()) if torch.is_tensor(x)]
            CALLS.append([name, max(x.numel() * x.element_size() for x in tensors)])
            return call(*given, **named)
        return noted

    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, noting(name, getattr(dist, name)))
    import deepspeed  # noqa: F401
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    grpo.patched()
    vars(torch)["mm"] = unmultiplied(torch.mm)


def run(row):
    import deepspeed
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config
    from trl.trainer.utils import add_fused_lm_head
    os.environ["WORLD_SIZE"] = str(row["ranks"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=row["ranks"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = AutoConfig.for_model("llama", **row["model"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    asked = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
             "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 3, **row["options"]}}
    unset_hf_deepspeed_config()
    kept = HfDeepSpeedConfig(asked)
    if row["checkpoint"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    if row["lora"]:
        from peft import LoraConfig, get_peft_model
        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=row["lora"], lora_alpha=8, target_modules=["q_proj", "v_proj"]),
                               autocast_adapter_dtype=False)
    engine, *_ = deepspeed.initialize(model=model, config=asked, optimizer=torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], fused=True))
    assert kept.is_zero3()
    found = {}
    for _ in range(3):
        found["microbatches"] = []
        for _ in range(2):
            CALLS.clear()
            tokens = torch.randint(0, config.vocab_size, (1, row["seq"]))
            out = engine(input_ids=tokens, labels=tokens, fused_lm_head=True)
            engine.backward(-out.log_probs.sum())
            found["microbatches"].append(list(CALLS))
            CALLS.clear()
            engine.step()
        found["step"] = list(CALLS)
    return found


def main():
    prepare()
    print(with_cases({"deepspeed": "0.19.6", "trl": "1.16.0"}, run_apart(drawn(), run), indent=" "))


if __name__ == "__main__":
    main()
