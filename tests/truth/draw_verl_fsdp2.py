"""Draws actors and critics of verl under FSDP2, and measures them: verl's own functions, torch's fake group.

    python tests/truth/draw_verl_fsdp2.py VERL > tests/truth/verl/drawn-fsdp2-torch-2.13.0.json

`VERL`: git directory of volcengine/verl with b178a3cd, whose `apply_fsdp2` and `get_shard_placement_fn`
(`verl/utils/fsdp_utils.py`) run, called as `workers/fsdp_workers.py` _build_model_optimizer calls them. Of a case:
`parts`: elements of the first rank's padded part of every parameter by its name, and the dimension that is cut;
`step`: collectives of the second forward and backward pass with their bytes; `state_dict`: bytes that `state_dict()`
allocates, and bytes that it alone still holds when the model has moved as `offload_fsdp2_model_to_cpu` moves it.
`--seed S --count N` draws others. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import random
from typing import Any

import torch
import torch.distributed as dist
from drawing import Case, by_name, maybe, numbered, print_apart
from probe_critic import _model as critic
from probe_critic import functions
from probe_verl import traced

SEED, COUNT = 20261130, 40
FAMILIES = ("llama", "qwen2", "gemma2")
NAMES = {"all_gather_into_tensor": "all_gather", "all_gather_single": "all_gather",
         "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_single": "reduce_scatter",
         "all_reduce": "all_reduce"}


def one(rng: random.Random) -> Case:
    """A case of one of the families."""
    heads, family = rng.choice((2, 4, 8)), rng.choice(FAMILIES)
    sizes: Case = {"hidden_size": 16 * heads, "intermediate_size": rng.choice((96, 128, 136)),
                   "num_hidden_layers": rng.randint(1, 5), "num_attention_heads": heads,
                   "num_key_value_heads": heads // rng.choice((1, 2)), "head_dim": 16,
                   "vocab_size": rng.choice((500, 1001, 1024)), "tie_word_embeddings": rng.random() < 0.5}
    case: Case = {"family": family, "sizes": sizes, "ranks": rng.choice((2, 3, 4, 5, 6, 8, 12, 16, 24)),
                  "tokens": rng.choice((32, 48, 100, 256)), "role": rng.choice(("actor", "actor", "critic"))}
    if case["ranks"] % 2 == 0 and case["ranks"] > 2:
        maybe(rng, case, 0.3, copies=2)
    maybe(rng, case, 0.35, checkpoint=True)
    maybe(rng, case, 0.25, reshard=False)
    maybe(rng, case, 0.3, stored="bf16")
    return case


def _actor(family: str, sizes: Case) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.for_model(family, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").train()


def measured(verl: str, case: Case) -> Case:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    space = functions(verl, "verl/utils/fsdp_utils.py", "apply_fsdp2", "get_shard_placement_fn")
    space |= {"fully_shard": fully_shard, "CPUOffloadPolicy": CPUOffloadPolicy, "nn": torch.nn, "Shard": Shard,
              "maybe_patch_fsdp_module": lambda module: contextlib.nullcontext()}
    os.environ.setdefault("LOCAL_RANK", "0")
    ranks, copies = case["ranks"], case.get("copies", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model = (critic if case["role"] == "critic" else _actor)(case["family"], case["sizes"])
    model.to(torch.bfloat16 if case.get("stored") else torch.float32)
    if case.get("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    mesh = init_device_mesh("cpu", (copies, ranks // copies), mesh_dim_names=("ddp", "fsdp"))
    mesh = mesh if copies > 1 else mesh["fsdp"]
    names = [name for name, _ in model.named_parameters()]
    space["apply_fsdp2"](model, {
        "mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True),
        "offload_policy": None, "reshard_after_forward": case.get("reshard", True),
        "shard_placement_fn": space["get_shard_placement_fn"](fsdp_size=mesh.shape[-1])},
        {"wrap_policy": {"transformer_layer_cls_to_wrap": sorted(model._no_split_modules)}})  # a set in transformers 5
    ids = torch.randint(0, model.config.vocab_size, (1, case["tokens"]))
    steps = [_noted(functools.partial(_step, model, ids)) for _ in range(2)]
    parts = {name: [_part(one), one.placements[-1].dim] for name, one in model.named_parameters()}
    assert list(parts) == names
    found = {"parts": parts, "step": steps[-1], **_state_dict(model)}
    dist.destroy_process_group()
    return found


def _part(parameter: Any) -> int:
    """Elements of the padded part of the first rank, which has the longest."""
    size = parameter.to_local().untyped_storage().nbytes() // parameter.element_size()
    return int(size)


def _step(model: Any, ids: Any) -> None:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits
    logits.float().sum().backward()


def _noted(run: Any) -> list[Any]:
    """Collectives of a function in order, each with the bytes of its larger side."""
    noted: list[Any] = []
    kept = {name: getattr(dist, name) for name in NAMES if name in vars(dist)}

    def noting(name: str, call: Any, *given: Any, **named: Any) -> Any:
        tensors = [x for x in (*given, *named.values()) if torch.is_tensor(x)]
        noted.append([NAMES[name], max(x.numel() * x.element_size() for x in tensors)])
        return call(*given, **named)

    for name, call in kept.items():
        setattr(dist, name, functools.partial(noting, name, call))
    run()
    for name, call in kept.items():
        setattr(dist, name, call)
    return noted


def _state_dict(model: Any) -> Case:
    """What the state dict allocates, and what it holds alone behind a move of the model."""
    model.zero_grad()
    model.state_dict()
    entries, sizes = traced(model.state_dict)
    model._apply(torch.clone)  # as model.cpu(): every parameter gets another storage
    held = {one.to_local().untyped_storage().data_ptr(): one.to_local().untyped_storage().nbytes()
            for one in entries.values()}
    own = {one.to_local().untyped_storage().data_ptr() for one in model.parameters()}
    return {"state_dict": {"made": sum(size for size in sizes if size > 0), "held": sum(
        size for place, size in held.items() if place not in own)}}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("verl")
    asked.add_argument("--seed", type=int, default=SEED)
    asked.add_argument("--count", type=int, default=COUNT)
    given = asked.parse_args()
    for family in FAMILIES:  # a fork has what its parent has imported
        importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    importlib.import_module("torch.distributed.fsdp")
    print_apart(by_name(numbered("f", one)(given.seed, given.count)), functools.partial(measured, given.verl))


if __name__ == "__main__":
    main()
