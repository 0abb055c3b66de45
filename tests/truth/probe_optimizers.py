"""States of Lion, AdEMAMix, RMSprop and Adagrad, and what their steps hold for a moment, under each way to shard.

    python tests/truth/probe_optimizers.py > tests/truth/optimizers/shaped.json
    python tests/truth/probe_optimizers.py drawn > tests/truth/optimizers/drawn-shaped.json
    python tests/truth/probe_optimizers.py flat > tests/truth/optimizers/drawn-flat.json
    python tests/truth/probe_optimizers.py decayed > tests/truth/optimizers/drawn-decayed.json

One CPU; the process group is torch's fake one. Small Llamas of transformers are wrapped (none: each GPU has a copy;
torch's fully_shard or FullyShardedDataParallel on each layer and the rest), gradients are zeros, two steps run.
`decayed`: SGD, RMSprop and Adagrad of torch with a weight decay, by two seeds. `LION_PYTORCH` names the folder where
lion-pytorch 0.2.5 is unpacked, if it is not installed. bitsandbytes makes its states and takes no step but over
DTensors, at which it stops: on a CPU its kernels are others than a GPU's. A CPU has no managed memory: see
`probe_zero_states.py`, which the cases of DeepSpeed's stages are run by.
`built`, `states`: bytes of states once the optimizer is made, after two steps; `managed`: of these in managed memory;
`steps`: the most bytes that each of two steps has made and not freed, of the first with states; of DeepSpeed's stages
the second step, part by part. `left`: states of an optimizer that DeepSpeed has replaced and still holds.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import probe_zero_states as zero
from json_lines import with_cases
from oracle.apart import run_apart

sys.path.extend(filter(None, [os.environ.get("LION_PYTORCH")]))
MODEL = zero.LLAMA | {"vocab_size": 500}
TORCHS = ("lion_loop", "rmsprop_foreach", "rmsprop_loop", "rmsprop_momentum_foreach", "rmsprop_momentum_loop",
          "adagrad_foreach", "adagrad_loop", "adagrad_fused")
BNB = ("lion_32", "lion_8", "lion_32_paged", "lion_8_paged", "ademamix_32", "ademamix_8", "ademamix_32_paged",
       "ademamix_8_paged", "rmsprop_32", "rmsprop_8")
WITH_ZERO = (*BNB, "lion_loop", "rmsprop_foreach", "rmsprop_loop", "rmsprop_momentum_foreach", "adamw_foreach",
             "adamw_loop")
WRAPS = ("none", "fsdp2", "fsdp1")
OWN = ("own_lion", "own_adagrad")
"""Optimizers that DeepSpeed's configuration names: its own, of which nothing but the kernels is left out."""
SEEDS, COUNT = {"o": 20270311, "p": 20270407}, 60
"""By the first letter of a case: the second draws FSDP1's flat parameters, and DeepSpeed's own optimizers, too."""
FLAT_SEEDS, FLAT_COUNT = {"q": 20280229, "r": 20290117}, 48


DECAYED = ("sgd_foreach", "sgd_loop", "sgd_fused", "sgd_momentum_foreach", "sgd_momentum_loop", "rmsprop_foreach",
           "rmsprop_loop", "rmsprop_momentum_foreach", "rmsprop_momentum_loop", "adagrad_foreach", "adagrad_loop",
           "adagrad_fused")

DECAY_SEEDS = {"w": 20271204, "x": 20271205}


def case(wrap: str, optimizer: str, ranks: int = 2, rank: int = 0, dtype: str = "bfloat16",
         model: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    if wrap.startswith("zero"):
        return zero.case(int(wrap[-1]), optimizer, ranks, rank, 0, (model or {}), **options)
    return {"wrap": wrap, "optimizer": optimizer, "ranks": ranks, "rank": rank, "dtype": dtype,
            "model": MODEL | (model or {}), "options": options}


CASES = {
    **{f"{wrap}, {name}": case(wrap, name, dtype=dtype) for wrap, dtype in zip(WRAPS, ("float32", "bfloat16",
                                                                                    "bfloat16"), strict=True)
       for name in (*TORCHS, *BNB)}, **{f"fsdp2, {name}": case("fsdp2", name) for name in ("adamw_32", "adamw_8")},
    **{f"zero{stage}, {name}": case(f"zero{stage}", name, 4) for stage in range(4) for name in WITH_ZERO},
    **{f"zero{stage}, adagrad": case(f"zero{stage}", "adagrad_foreach", 4) for stage in range(4)},
    **{f"zero{stage}, {name}, host": case(f"zero{stage}", name, 4, offload_optimizer=zero.TO_CPU)
       for stage in (2, 3) for name in ("lion_32", "lion_8", "rmsprop_foreach", "adagrad_foreach")},
    **{f"zero{stage}, own_lion": case(f"zero{stage}", "own_lion", 4) for stage in range(4)},
    **{f"zero{stage}, {name}, host": case(f"zero{stage}", name, 4, offload_optimizer=zero.TO_CPU)
       for stage in (1, 2, 3) for name in OWN},
}


def drawn() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for letter, seed in SEEDS.items():
        found |= _drawn(letter, random.Random(seed))
    return found


def decayed() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for letter, seed in DECAY_SEEDS.items():
        found |= _decayed(letter, random.Random(seed))
    return found


def _decayed(letter: str, rng: random.Random) -> dict[str, Any]:
    found = {}
    for number in range(COUNT):
        wrap, name = rng.choice((*WRAPS, *WRAPS, "zero0", "zero1", "zero2", "zero3")), rng.choice(DECAYED)
        if wrap.startswith("zero") and name.startswith("adagrad"):
            name = "sgd_foreach"
        heads, ranks = rng.choice((2, 3, 4, 5)), rng.choice((1, 2, 3, 4, 5, 8, 16))
        found[f"{letter}{number}"] = case(
            wrap, f"{name}_decay", ranks, rng.randrange(ranks), **({} if wrap.startswith("zero") else {
                "dtype": rng.choice(("float32", "bfloat16"))}), model={
                "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": heads,
                "intermediate_size": rng.choice((400, 512, 777)), "num_hidden_layers": rng.choice((1, 2, 3)),
                "vocab_size": rng.choice((503, 1000, 2001)), "tie_word_embeddings": rng.random() < 0.25})
    return found


def _drawn(letter: str, rng: random.Random) -> dict[str, Any]:
    found = {}
    for number in range(COUNT):
        wrap = rng.choice((*WRAPS, *WRAPS, "zero0", "zero1", "zero2", "zero3"))
        names = {"fsdp2": TORCHS, "none": (*TORCHS, *BNB), "fsdp1": (*TORCHS, *BNB)}.get(wrap, WITH_ZERO)
        heads, ranks = rng.choice((2, 3, 4, 5)), rng.choice((1, 2, 3, 4, 5, 8, 16))
        options = {"use_orig_params": rng.random() < 0.3} if letter == "p" and wrap == "fsdp1" else {}
        name = rng.choice(names)
        if letter == "p" and wrap in ("zero1", "zero2", "zero3") and rng.random() < 0.4:
            name, options = rng.choice(OWN), {"offload_optimizer": zero.TO_CPU}
        found[f"{letter}{number}"] = case(
            wrap, name, ranks, rng.randrange(ranks), **options, **({} if wrap.startswith("zero") else {
                "dtype": rng.choice(("float32", "bfloat16"))}), model={
                "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": heads,
                "intermediate_size": rng.choice((400, 512, 777)), "num_hidden_layers": rng.choice((1, 2, 3)),
                "vocab_size": rng.choice((503, 1000, 2001)), "tie_word_embeddings": rng.random() < 0.25})
    return found


def flat() -> dict[str, Any]:
    """Flat parameters of FSDP1 of many sizes, under states of 8 bits and paged ones."""
    return {f"{letter}{number}": one for letter, seed in FLAT_SEEDS.items()
            for rng in (random.Random(seed),) for number, one in enumerate(_flat(rng) for _ in range(FLAT_COUNT))}


def _flat(rng: random.Random) -> dict[str, Any]:
    heads, ranks = rng.choice((1, 2, 4, 6, 8)), rng.choice((1, 2, 3, 4, 7, 8, 16, 32))
    return case("fsdp1", rng.choice(BNB), ranks, rng.randrange(ranks), rng.choice(("float32", "bfloat16")), {
        "hidden_size": 64 * heads, "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": rng.choice((100, 512, 777, 1500)), "num_hidden_layers": rng.choice((1, 2, 3)),
        "vocab_size": rng.choice((64, 503, 2001, 5000)), "tie_word_embeddings": rng.random() < 0.3},
        use_orig_params=False)


def optimizer_of(name: str, parameters: Any) -> Any:
    """bitsandbytes' and torch's as transformers 5.23 `trainer_optimizer.py` makes them; lion-pytorch's."""
    import bitsandbytes
    import torch
    kind, *words = name.split("_")
    if {"8", "32"} & {*words}:
        made = {"lion": bitsandbytes.optim.Lion, "ademamix": bitsandbytes.optim.AdEMAMix,
                "rmsprop": bitsandbytes.optim.RMSprop, "adamw": bitsandbytes.optim.AdamW}[kind]
        paged = {"is_paged": "paged" in words} if kind in ("lion", "ademamix") else {}
        return made(parameters, optim_bits=8 if "8" in words else 32, **paged)
    if kind == "lion":
        from lion_pytorch import Lion
        return Lion(parameters, lr=1e-4)
    decay = {"weight_decay": 0.1} if "decay" in words else {}
    made = {"sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad,
            "adamw": torch.optim.AdamW}[kind]
    momentum = {"momentum": 0.9} if "momentum" in words else {}
    return made(parameters, lr=1e-4, **momentum, **decay, **(
        {"fused": True} if "fused" in words else {"foreach": "foreach" in words}))


def wrapped(row: dict[str, Any]) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    dist.init_process_group("fake", store=FakeStore(), rank=row["rank"], world_size=row["ranks"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **row["model"]),
                                             dtype=getattr(torch, row["dtype"]))
    if row["wrap"] == "fsdp2":
        mesh = init_device_mesh("cpu", (row["ranks"],))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif row["wrap"] == "fsdp1":
        return FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), use_orig_params=row["options"].get("use_orig_params", True),
            auto_wrap_policy=torch.distributed.fsdp.wrap.ModuleWrapPolicy({LlamaDecoderLayer}))
    return model


def bytes_of(optimizer: Any) -> tuple[int, int]:
    """Bytes of the states of the optimizer, and of these in managed memory; counts of steps are left out."""
    import torch
    found, seen = [0, 0], set()
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step" and not name.startswith("qmap"):
                storage = getattr(value, "_local_tensor", value).untyped_storage()
                assert storage._cdata not in seen
                seen.add(storage._cdata)
                found[bool(getattr(value, "is_paged", False))] += storage.nbytes()
    return found[0], found[1]


def is_bitsandbytes(name: str) -> bool:
    return bool({"8", "32"} & {*name.split("_")})


def traced(optimizer: Any, step: Any, parameters: Any) -> int:
    """The most bytes that a step has made and not yet freed, scalars left out."""
    import torch
    from oracle.steps.tracker import Tracker
    tracker = Tracker()
    with tracker:
        for p in parameters:
            tracker.number_of(p)
            tracker.number_of(p.grad)
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    tracker.number_of(value)
        start = len(tracker.events)
        step()
    live, most = 0, 0
    for number, change in tracker.events[start:]:
        live += change * (tracker.info[number]["shape"] != ())
        most = max(most, live)
    return most


def run_wrapped(row: dict[str, Any]) -> dict[str, Any]:
    import torch
    from bitsandbytes.optim.optimizer import Optimizer8bit
    model = wrapped(row)
    parameters = [p for p in model.parameters() if p.numel()]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    if row["wrap"] == "fsdp2":
        Optimizer8bit.get_state_buffer = PLAIN[0]
    optimizer = optimizer_of(row["optimizer"], parameters)
    found: dict[str, Any] = {"elements": sum(getattr(p, "_local_tensor", p).numel() for p in parameters),
                             "built": bytes_of(optimizer)[0]}
    if is_bitsandbytes(row["optimizer"]) and row["wrap"] != "fsdp2":
        for number, group in enumerate(optimizer.param_groups):
            for place, p in enumerate(group["params"]):
                optimizer.init_state(group, p, number, place)
        states, managed = bytes_of(optimizer)
        return found | {"states": states, "managed": managed}
    try:
        steps = [traced(optimizer, optimizer.step, parameters) for _ in range(2)]
    except Exception as error:  # noqa: BLE001 - the words are the result
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    return found | {"states": bytes_of(optimizer)[0], "managed": 0, "steps": steps}


class NoKernels:
    """A library of kernels that do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def started_by_name(row: dict[str, Any]) -> Any:
    """The engine with an optimizer that its configuration names, and the configuration of its model."""
    import importlib

    import deepspeed
    for path, builder in (("lion.cpu_lion", "CPULionBuilder"), ("lion.fused_lion", "FusedLionBuilder"),
                          ("adagrad.cpu_adagrad", "CPUAdagradBuilder")):
        module = importlib.import_module(f"deepspeed.ops.{path}")
        setattr(module, builder, type("Builder", (), {"load": lambda _: NoKernels()}))
    plain, kind = deepspeed.initialize, row["optimizer"].removeprefix("own_").title()
    deepspeed.initialize = lambda model, optimizer, config: plain(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={**config, "optimizer": {"type": kind, "params": {"lr": 1e-4}}})
    return zero.started({**row, "optimizer": "adamw_foreach"})


def run_zero(row: dict[str, Any]) -> dict[str, Any]:
    """As `probe_zero_states.run`, with what an optimizer that DeepSpeed has replaced still holds (`left`)."""
    import torch
    from deepspeed.runtime.zero.utils import ZeRORuntimeException
    try:
        engine, config = (started_by_name if row["optimizer"] in OWN else zero.started)(row)
    except ZeRORuntimeException as error:
        return {"refused": f"{type(error).__name__}: {str(error)[:160]}"}
    inner, steps = engine.optimizer.optimizer, []
    plain = inner.step
    if not is_bitsandbytes(row["optimizer"]) and row["optimizer"] not in OWN:
        inner.step = lambda *_: steps.append(traced(inner, plain, [
            p for group in inner.param_groups for p in group["params"] if p.grad is not None]))
    for _ in range(2):
        tokens = torch.randint(0, config.vocab_size, (1, 8))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()
    masters = zero.masters_of(engine.optimizer, row["stage"])
    left = bytes_of(engine.basic_optimizer)[0] if engine.basic_optimizer is not inner else 0
    return {"masters": [int(x.numel()) for x in masters], "states": [zero.kept(inner.state[x]) for x in masters],
            "left": left, "steps": steps[len(steps) // 2:]}


PLAIN: list[Any] = []
"""How bitsandbytes makes a state, unless it is told of managed memory."""


def run(row: dict[str, Any]) -> dict[str, Any]:
    return run_wrapped(row) if "wrap" in row else run_zero(row)


def main() -> None:
    from bitsandbytes.optim.optimizer import Optimizer8bit
    PLAIN.append(Optimizer8bit.get_state_buffer)
    zero.prepare()
    zero.optimizer_of = optimizer_of
    import torch
    import transformers
    torch.set_num_threads(1)
    asked = {"drawn": drawn, "flat": flat, "decayed": decayed}[sys.argv[1]]() if sys.argv[1:] else CASES
    print(with_cases({"torch": torch.__version__, "transformers": transformers.__version__, "bitsandbytes": "0.50.2",
                      "lion-pytorch": "0.2.5", "deepspeed": "0.19.6"},
                     run_apart(asked, run),
                     indent=" "))


if __name__ == "__main__":
    main()
