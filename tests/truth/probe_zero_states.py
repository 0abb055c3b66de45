"""What optimizers with states of 8 bits, or paged ones, keep of DeepSpeed's flat parts.

    python tests/truth/probe_zero_states.py > tests/truth/deepspeed/states-0.19.6.json
    python tests/truth/probe_zero_states.py drawn > tests/truth/deepspeed/drawn-states-0.19.6.json
    python tests/truth/probe_zero_states.py drawn4 > tests/truth/deepspeed/drawn4-states-0.19.6.json

DeepSpeed 0.19.6 as released, bitsandbytes 0.50.2 and torchao 0.18.0 on one CPU, over small Llamas of transformers in
bf16 with all parameters in one group; the process group is torch's fake one. One step, after which the states are read
from the optimizer. A CPU has no managed memory: tensors say that they are on a GPU while bitsandbytes chooses, and what
it would make there is noted as `managed`. torchao's updates run uncompiled. `drawn`: cases by a seed, none of which is
drawn again because of what came out.
`drawn4`: the same by another seed, of torchao's states of 4 bits, whose two values lie in a byte.
`masters`: elements of each master; `states`: for each master, name -> [bytes of its storages, managed or not];
`refused`: DeepSpeed's own words.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys

from json_lines import with_cases
from oracle.apart import run_apart

LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 1000, "tie_word_embeddings": False}
OPTIMIZERS = ("bnb8", "bnb8", "bnb8", "bnb8_paged", "bnb8_paged", "bnb32", "bnb32_paged", "ao8")
TO_CPU = {"device": "cpu", "pin_memory": False}


def case(stage, optimizer, ranks=4, rank=0, lora=0, model=None, **options):
    return {"stage": stage, "optimizer": optimizer, "ranks": ranks, "rank": rank, "lora": lora,
            "model": LLAMA | (model or {}), "options": options}


CASES = {
    **{f"{stage}, {optimizer}": case(stage, optimizer) for stage in range(4)
       for optimizer in dict.fromkeys(OPTIMIZERS)},
    "2, small part": case(2, "bnb8", ranks=64, lora=2), "3, small part": case(3, "bnb8", ranks=64, lora=2),
    "3, groups": case(3, "bnb8", sub_group_size=100_000),
    "3, groups, paged": case(3, "bnb8_paged", sub_group_size=150_000),
    "2, last rank": case(2, "bnb8", ranks=3, rank=2), "3, last rank": case(3, "bnb8", ranks=3, rank=2),
    "2, host": case(2, "bnb8", offload_optimizer=TO_CPU), "3, host": case(3, "bnb8_paged", offload_optimizer=TO_CPU),
}
SEED, COUNT = 20270117, 40
SEED_4 = 20271203


def drawn(seed=SEED, optimizers=OPTIMIZERS, letter="s"):
    rng, found = random.Random(seed), {}
    for number in range(COUNT):
        heads, stage, ranks = rng.choice((2, 3, 4, 5)), rng.choice((0, 1, 2, 2, 3, 3, 3)), rng.choice(
            (1, 2, 3, 4, 5, 8, 16, 48))
        groups = {"sub_group_size": rng.choice((30_000, 150_000, 400_000))} if stage == 3 and rng.random() < 0.4 else {}
        found[f"{letter}{number}"] = case(
            stage, rng.choice(optimizers), ranks, rng.randrange(ranks), rng.choice((0, 0, 0, 1, 4, 16)), {
                "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": heads,
                "intermediate_size": rng.choice((400, 512, 777)), "num_hidden_layers": rng.choice((1, 2, 3)),
                "vocab_size": rng.choice((503, 1000, 3001)), "tie_word_embeddings": rng.random() < 0.25}, **groups)
    return found


class Gpu(str):
    """A device that is a CPU, and says that it is none."""

    type = "cuda"


def prepare():
    """Everything is imported once; bitsandbytes' choice of memory is noted."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345",
                   "TORCHDYNAMO_DISABLE": "1"}
    import deepspeed  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401
    from bitsandbytes import functional
    from bitsandbytes.optim.optimizer import Optimizer8bit
    from torchao.optim import AdamW8bit  # noqa: F401
    logging.disable(logging.CRITICAL)  # to stdout
    coordinator = importlib.import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
    coordinator.assert_ints_same_as_other_ranks = lambda ints: None  # there are no others
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None

    class OnGpu(torch.Tensor):
        device = property(lambda _: Gpu("cpu"))

    def managed(*shape, dtype, device):
        made = torch.zeros(*shape, dtype=dtype)
        made.is_paged = True
        return made

    choose = Optimizer8bit.get_state_buffer
    functional.get_paged, functional.fill = managed, lambda buffer, value: None
    functional.prefetch_tensor = lambda tensor: None

    def chosen(self, p, dtype=torch.float32):
        made = choose(self, p.as_subclass(OnGpu), dtype=dtype)
        paged = getattr(made, "is_paged", False)
        made = made.as_subclass(torch.Tensor)
        made.is_paged = paged
        return made

    Optimizer8bit.get_state_buffer = chosen


def optimizer_of(name, parameters):
    """As transformers 5.23 `trainer_optimizer.py` makes it."""
    import bitsandbytes
    from torchao.optim import AdamW4bit, AdamW8bit
    if name in ("ao8", "ao4"):
        return (AdamW8bit if name == "ao8" else AdamW4bit)(parameters, block_size=256)
    return bitsandbytes.optim.AdamW(parameters, optim_bits=8 if "8" in name else 32, is_paged=name.endswith("paged"))


def started(row):
    """The engine and the configuration of its model."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    os.environ |= {"RANK": str(row["rank"]), "WORLD_SIZE": str(row["ranks"])}
    dist.init_process_group("fake", store=FakeStore(), rank=row["rank"], world_size=row["ranks"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = AutoConfig.for_model("llama", **row["model"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    if row["lora"]:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=row["lora"], lora_alpha=8, target_modules=["q_proj", "v_proj"]),
                               autocast_adapter_dtype=False)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer_of(row["optimizer"], [p for p in model.parameters() if p.requires_grad]),
        config={"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": row["stage"], **(
                    {"reduce_bucket_size": 100_000, **row["options"]} if row["stage"] else {})}})
    return engine, config


def masters_of(optimizer, stage):
    if stage == 0:
        return [x for group in optimizer.fp32_groups for x in group]
    return optimizer.single_partition_of_fp32_groups if stage < 3 else optimizer.fp32_partitioned_groups_flat


def parts(value):
    """Storages of a state; torchao's is a tensor of tensors."""
    names = value.__tensor_flatten__()[0] if type(value).__name__.startswith("OptimState") else ()
    return [getattr(value, name) for name in names] or [value]


def kept(state):
    import torch
    return {name: [sum(x.untyped_storage().nbytes() for x in parts(value)), bool(getattr(value, "is_paged", False))]
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and not name.startswith("qmap") and (
                value.numel() > 1 or name.startswith("absmax"))}


def run(row):
    import torch
    from deepspeed.runtime.zero.utils import ZeRORuntimeException
    try:
        engine, config = started(row)
    except ZeRORuntimeException as error:
        return {"refused": f"{type(error).__name__}: {str(error)[:160]}"}
    tokens = torch.randint(0, config.vocab_size, (1, 8))
    engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
    engine.step()
    masters = masters_of(engine.optimizer, row["stage"])
    inner = engine.optimizer.optimizer
    return {"wrapper": type(engine.optimizer).__name__, "masters": [int(x.numel()) for x in masters],
            "states": [kept(inner.state[x]) for x in masters]}


def main():
    prepare()
    cases = {"drawn": drawn, "drawn4": lambda: drawn(SEED_4, ("ao4",), "q")}[sys.argv[1]]() if sys.argv[1:] else CASES
    print(with_cases({"deepspeed": "0.19.6", "bitsandbytes": "0.50.2", "torchao": "0.18.0"}, run_apart(cases, run),
                     indent=" "))


if __name__ == "__main__":
    main()
