"""What transformers' Adafactor keeps and holds under each framework: steps of small models on one CPU.

    python tests/truth/probe_adafactor.py > tests/truth/optimizers/adafactor-5.23.0.json
    python tests/truth/probe_adafactor.py drawn > tests/truth/optimizers/drawn-adafactor-5.23.0.json

transformers 5.23.0 as released, torch 2.13, DeepSpeed 0.19.6; the process group is torch's fake one. The optimizer is
made as the Trainer makes it (`trainer_optimizer.py`, _get_adafactor; `trainer.py`, create_optimizer: two groups), and
each of its steps runs under a mode that notes every storage. `states`: of each tensor that the optimizer sees, in its
order, name -> elements; `dtypes` of them; `peaks`: of the two steps, for each call of the optimizer (DeepSpeed makes
one for each flat part), the most bytes beyond those that lay there when it began; `refused`: upstream's own words.
`drawn`: cases by a seed, none of which is drawn again because of what came out.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import random
import sys
import warnings

from json_lines import with_cases
from oracle.apart import run_apart

LLAMA = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 500, "tie_word_embeddings": False}
MIXTURE = LLAMA | {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": []}
SINKS = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 500, "num_local_experts": 4,
         "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"]}
HYBRID = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 500, "mamba_d_ssm": 256, "mamba_n_heads": 8,
          "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "tie_word_embeddings": False}


def case(framework, preset="llama-3.2-3b", model=None, ranks=2, rank=0, stored="bfloat16", lora=0, **options):
    return {"framework": framework, "preset": preset, "model": LLAMA if model is None else model, "ranks": ranks,
            "rank": rank, "stored": stored, "lora": lora, "options": options}


CASES = {
    **{f"ddp, {preset}, {stored}": case("ddp", preset, model, stored=stored) for stored in ("bfloat16", "float32")
       for preset, model in (("llama-3.2-3b", LLAMA), ("qwen3-30b-a3b", MIXTURE), ("gpt-oss-20b", SINKS),
                             ("falcon-h1-0.5b", HYBRID), ("qwen2.5-7b", LLAMA))},
    "ddp, lora": case("ddp", lora=8), "ddp, lora, fp32": case("ddp", lora=8, adapters="float32"),
    "zero0": case("zero0"), "zero1": case("zero1"), "zero2": case("zero2", ranks=3, rank=2), "zero3": case("zero3"),
    "zero3, groups": case("zero3", sub_group_size=60_000), "zero2, lora": case("zero2", lora=4),
    "zero2, host": case("zero2", offload_optimizer={"device": "cpu"}),
    "fsdp1": case("fsdp1", stored="float32"), "fsdp1, rank 1": case("fsdp1", stored="float32", rank=1),
    "fsdp1, original": case("fsdp1", stored="float32", ranks=3, rank=1, use_orig_params=True),
    "fsdp1, original, whole": case("fsdp1", stored="float32", strategy="NO_SHARD", use_orig_params=True),
    "fsdp1, bf16": case("fsdp1", stored="bfloat16", use_orig_params=True),
    **{f"fsdp1, lora, rank {rank}": case("fsdp1", stored="float32", ranks=3, rank=rank, lora=8, use_orig_params=True)
       for rank in (0, 1)},
    "fsdp2": case("fsdp2"), "fsdp2, fp32": case("fsdp2", stored="float32"),
    "fsdp2, torch's": case("fsdp2", torchs="for_loop"), "fsdp2, torch's, foreach": case("fsdp2", torchs="foreach"),
}
SEED, COUNT = 20263107, 48


def drawn():
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        framework = rng.choice(("ddp", "ddp", "ddp", "zero0", "zero1", "zero2", "zero3", "fsdp1", "fsdp1"))
        more = {"qwen3-30b-a3b": MIXTURE, "gpt-oss-20b": SINKS, "falcon-h1-0.5b": HYBRID}
        presets = {**(more if framework == "ddp" else {}),
                   "llama-3.2-3b": LLAMA, "qwen2.5-7b": LLAMA, "qwen3-8b": LLAMA}
        preset = rng.choice([*presets])
        ranks = 1 if framework == "ddp" else rng.choice((2, 3, 4, 8))
        stored = "float32" if framework == "fsdp1" else rng.choice(("bfloat16", "float32")) if (
            framework == "ddp") else "bfloat16"
        options = {}
        if framework == "zero3" and rng.random() < 0.5:
            options["sub_group_size"] = rng.choice((20_000, 90_000))
        if framework == "fsdp1":
            options["use_orig_params"] = rng.random() < 0.6
        lora = rng.choice((0, 0, 0, 4, 16)) if preset in ("llama-3.2-3b", "qwen2.5-7b") and framework != "fsdp1" else 0
        if lora and framework == "ddp" and stored == "bfloat16" and rng.random() < 0.5:
            options["adapters"] = "float32"
        found[f"a{number}"] = case(framework, preset, sized(rng, preset, presets[preset]), ranks, rng.randrange(ranks),
                                   stored, lora, **options)
    return found


def sized(rng, preset, model):
    made = model | {"num_hidden_layers": rng.choice((1, 2, 3)), "vocab_size": rng.choice((300, 777, 1500)),
                    "tie_word_embeddings": rng.random() < 0.3}
    if preset == "gpt-oss-20b":
        kinds = ["sliding_attention", "full_attention"] * 2
        return made | {"layer_types": kinds[:made["num_hidden_layers"]], "num_local_experts": rng.choice((2, 5)),
                       "intermediate_size": rng.choice((24, 56)), "tie_word_embeddings": False}
    if preset == "qwen3-30b-a3b":
        return made | {"moe_intermediate_size": rng.choice((24, 72)), "num_experts": rng.choice((3, 8))}
    return made | {"intermediate_size": rng.choice((200, 333, 512))}


def prepare():
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345",
                   "TORCHDYNAMO_DISABLE": "1"}
    warnings.simplefilter("ignore")
    import deepspeed  # noqa: F401
    import oracle.steps.models  # noqa: F401
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401
    logging.disable(logging.CRITICAL)  # to stdout
    coordinator = importlib.import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
    coordinator.assert_ints_same_as_other_ranks = lambda ints: None  # there are no others
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def model_of(row):
    import torch
    from oracle.steps import models
    model = models.build_meta(row["preset"], row["model"], "eager" if row["preset"].startswith("falcon") else "")
    for p in model.parameters():
        p.data = p.data.to(getattr(torch, row["stored"]))
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    model.to_empty(device="cpu").train()
    if tied:
        model.tie_weights()
    for x in (*model.parameters(), *model.buffers()):
        x.data.zero_()
    if row["lora"]:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=row["lora"], lora_alpha=8, target_modules=["q_proj", "v_proj"]),
                               autocast_adapter_dtype=row["options"].get("adapters") == "float32")
    return model


def optimizer_of(model, *, in_groups=True):
    """As transformers 5.23 `trainer.py`, create_optimizer, and `trainer_optimizer.py`, _get_adafactor, make it.

    Flat parts are of one parameter group, as those of other optimizers were measured.
    """
    from transformers import Trainer
    from transformers.optimization import Adafactor
    names = Trainer.get_decay_parameter_names(None, model) if in_groups else [n for n, _ in model.named_parameters()]
    decayed = set(names)
    groups = [{"params": [p for n, p in model.named_parameters() if p.requires_grad and (n in decayed) is chosen],
               "weight_decay": 0.0} for chosen in (True, False)]
    return Adafactor([g for g in groups if g["params"]], lr=1e-3, scale_parameter=False, relative_step=False)


def noting(optimizer, calls):
    """Each of the optimizer's steps notes its peak."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Mode(TorchDispatchMode):
        def __init__(self, known):
            super().__init__()
            self.live, self.now, self.peak, self.refs = set(), 0, 0, {}
            for storage in known:
                self.follow(storage)

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in tree_iter(out):
                if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in self.live:
                    self.now += x.untyped_storage().nbytes()
                    self.peak = max(self.peak, self.now)
                    self.follow(x.untyped_storage())
            return out

        def follow(self, storage):
            at, size = storage._cdata, storage.nbytes()
            self.live.add(at)
            self.refs[at] = weakref.ref(storage, lambda _: self.died(at, size))

        def died(self, at, size):
            self.live.discard(at)
            self.now -= size

    step = type(optimizer).step

    def noted(self, *given, **named):
        held = [p for group in self.param_groups for p in group["params"]]
        mode = Mode({x.untyped_storage()._cdata: x.untyped_storage() for x in (
            *held, *(p.grad for p in held if p.grad is not None),
            *(x for state in self.state.values() for x in state.values() if torch.is_tensor(x)))}.values())
        gc.collect()
        with mode:
            step(self, *given, **named)
        calls.append(mode.peak)

    optimizer.step = noted.__get__(optimizer)


def states_of(optimizer):
    import torch
    rows, dtypes = [], set()
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = {name: x for name, x in optimizer.state.get(p, {}).items() if torch.is_tensor(x)}
            dtypes |= {str(x.dtype).removeprefix("torch.") for x in state.values()}
            rows.append({name: x.numel() for name, x in state.items()})
    return rows, sorted(dtypes)


def started(row):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    os.environ |= {"RANK": str(row["rank"]), "WORLD_SIZE": str(row["ranks"])}
    dist.init_process_group("fake", store=FakeStore(), rank=row["rank"], world_size=row["ranks"])


def of_zero(row):
    import deepspeed
    import torch
    model = model_of(row)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    stage, calls = int(row["framework"][-1]), []
    made = optimizer_of(model, in_groups=stage == 0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=made, config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, **({"reduce_bucket_size": 100_000, **row["options"]} if stage else {})}})
    inner, peaks = engine.optimizer.optimizer, []
    for _ in range(2):
        noting(inner, calls := [])
        tokens = torch.randint(0, 100, (1, 8))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()
        peaks.append(calls)
        del inner.step
    masters = engine.optimizer.fp32_partitioned_groups_flat if stage == 3 else [
        p for g in inner.param_groups for p in g["params"]]
    rows = [{n: x.numel() for n, x in inner.state[p].items() if torch.is_tensor(x)} for p in masters]
    return {"wrapper": type(engine.optimizer).__name__, "masters": [p.numel() for p in masters], "states": rows,
            "peaks": peaks}


def of_torch(row):
    import torch
    model, framework = model_of(row), row["framework"]
    if framework == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        layers = {type(model.get_decoder().layers[0])}
        model = FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy(layers),
            sharding_strategy=ShardingStrategy[row["options"].get("strategy", "FULL_SHARD")],
            mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
            use_orig_params=row["options"].get("use_orig_params", False))
    if framework == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        for layer in model.get_decoder().layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer, peaks = optimizer_of(model), []
    if "torchs" in row["options"]:
        optimizer = torch.optim.Adafactor(model.parameters(), foreach=row["options"]["torchs"] == "foreach")
    for _ in range(2):
        if framework == "ddp":
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad else None
        else:
            tokens = torch.randint(0, 100, (1, 8))
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        noting(optimizer, calls := [])
        optimizer.step()
        peaks.append(calls)
        del optimizer.step
        optimizer.zero_grad()
    rows, dtypes = states_of(optimizer)
    return {"states": rows, "dtypes": dtypes, "peaks": peaks}


def run(row):
    started(row)
    try:
        return of_zero(row) if row["framework"].startswith("zero") else of_torch(row)
    except Exception as error:  # noqa: BLE001 - upstream's own words are the answer
        return {"refused": f"{type(error).__name__}: {str(error)[:200]}"}


def main():
    prepare()
    print(with_cases({"transformers": "5.23.0", "torch": "2.13.0", "deepspeed": "0.19.6"},
                     run_apart(drawn() if sys.argv[1:] else CASES, run), indent=" "))


if __name__ == "__main__":
    main()
