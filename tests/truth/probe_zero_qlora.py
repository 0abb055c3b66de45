"""What DeepSpeed's ZeRO sends and holds of a model that bitsandbytes has packed, over a small Llama on one CPU.

    python tests/truth/probe_zero_qlora.py CHECKOUT > tests/truth/deepspeed/qlora-0.19.6.json

CHECKOUT and process group: as `probe_deepspeed.py`; model and adapters: as `probe_qlora.py`. `dtypes`: of parameters
after DeepSpeed has cast them; `microbatches`: every collective of the two microbatches of the fourth step, with bytes
and dtype, `step`: those of its update. `parts`: elements of each parameter's part under stage 3, in order. `packed`:
bytes of the columns' type that the second microbatch made or saw and that are alive: when forward ends, at most in
backward, when backward ends and its loss is still there, and when that is gone.
"""

from __future__ import annotations

import importlib
import os
import sys
from itertools import accumulate
from typing import Any

from json_lines import with_cases
from oracle.apart import run_apart

LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4000, "tie_word_embeddings": False}
SMALL = {"reduce_bucket_size": 300_000, "overlap_comm": False}
THREE = SMALL | {"stage3_prefetch_bucket_size": 100_000, "stage3_param_persistence_threshold": 1_000,
                 "stage3_max_reuse_distance": 0}
CASES: dict[str, dict[str, Any]] = {
    "one": {"stage": 1, "options": SMALL}, "two": {"stage": 2, "options": SMALL},
    "three": {"stage": 3, "options": THREE}, "three, replayed": {"stage": 3, "options": THREE, "recompute": True},
    "three, reuse": {"stage": 3, "options": THREE | {"stage3_max_reuse_distance": 1_000_000}},
    "three, bf16 columns": {"stage": 3, "options": THREE, "storage": "bfloat16"},
    "three, small ones stay": {"stage": 3, "options": THREE | {"stage3_param_persistence_threshold": 40_000}},
    "three, some linears": {"stage": 3, "options": THREE, "recompute": True, "targets": ["q_proj", "v_proj"]},
}
CALLS: list[list[Any]] = []
NOTED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def prepare() -> None:
    """Everything is imported once, collectives are noted from the beginning."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345",
                   "RANK": "0", "WORLD_SIZE": "4"}
    import torch
    import torch.distributed as dist

    def noting(name: str, call: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            largest = max((x for x in (*given, *named.values()) if torch.is_tensor(x)),
                          key=lambda x: x.numel() * x.element_size())
            CALLS.append([name, largest.numel() * largest.element_size(), str(largest.dtype).removeprefix("torch.")])
            return call(*given, **named)
        return noted

    for name in NOTED:
        setattr(dist, name, noting(name, getattr(dist, name)))
    import deepspeed  # noqa: F401
    import probe_qlora  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def built(row: dict[str, Any]) -> Any:
    """The model as transformers loads it and PEFT adapts it."""
    import bitsandbytes as bnb
    import peft
    import probe_qlora
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert
    bnb.autograd._functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA), dtype=torch.bfloat16,
                                             attn_implementation="sdpa")
    weights, storage = {n: p.data for n, p in plain.named_parameters()}, getattr(torch, row.get("storage", "uint8"))
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=storage)
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain), config)
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False, compress_statistics=True,
                                            quant_type="nf4", quant_storage=storage, module=part).to("cpu")
    model.is_loaded_in_4bit = True  # what PEFT asks for
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=row.get("targets", probe_qlora.ALL),
                                                         use_dora=row.get("dora", False)))
    if row.get("recompute"):
        adapted.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
        adapted.base_model.model.enable_input_require_grads()
    return adapted.train()


def step(engine: Any, storage: str) -> dict[str, Any]:
    """A step of two microbatches; bytes are of the second."""
    import torch
    from oracle.steps.tracker import Tracker
    found: dict[str, Any] = {"microbatches": []}
    for _ in range(2):
        CALLS.clear()
        tokens, tracker = torch.randint(0, LLAMA["vocab_size"], (1, 32)), Tracker()
        with tracker:
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            forward = len(tracker.events)
            engine.backward(loss)
            backward = len(tracker.events)
            del loss
        found["microbatches"].append(list(CALLS))
        CALLS.clear()
        mine = {number for number, info in tracker.info.items() if info["dtype"] == storage}
        held = [0, *accumulate(change * (number in mine) for number, change in tracker.events)]
        found["packed"] = [held[forward], max(held[forward:backward + 1]), held[backward], held[-1]]
        engine.step()
    return found | {"step": list(CALLS)}


def run(row: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    model = built(row)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": row["stage"], **row["options"]}})
    for _ in range(4):
        found = step(engine, row.get("storage", "uint8"))
    found["dtypes"] = sorted({str(p.dtype).removeprefix("torch.") for p in engine.module.parameters()})
    if row["stage"] == 3:
        found["parts"] = [p.ds_tensor.numel() for p in engine.module.parameters()]
    return found


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    prepare()
    rows = run_apart({name: row for name, row in CASES.items() if not sys.argv[2:] or name in sys.argv[2:]}, run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212", "bitsandbytes": "0.50.2"}, rows, indent=" "))


if __name__ == "__main__":
    main()
