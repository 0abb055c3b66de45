"""Draws small models with a vision tower that are given text alone, as accelerate or axolotl wraps them, and measures.

    python tests/truth/draw_fsdp2_resting.py > tests/truth/fsdp2/drawn-resting-torch-2.13.0.json

Families, ranks, sizes of decoder and tower, who wraps, whether only the decoder's class is named, adapters in the
decoder or throughout, and checkpoints. The real `fsdp2_prepare_model` of accelerate 1.15.0 or of axolotl 0.19.0 wraps
over a fake group. `units`: modules of each `fully_shard` call with elements; `peaks`, `forward`, `backward`: of the
second step, as `probe_fsdp2_vision.py` has them; `gradients`, `states`: tensors of the tower that have one after a step
of AdamW with weight decay. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from drawing import Case, by_name, print_apart
from oracle.steps import delta
from oracle.whole_step import second_step

delta.put_in_place()  # the decoder of Qwen 3.5, of which nothing is told

from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: E402
from accelerate.utils import fsdp_utils as by_accelerate  # noqa: E402
from axolotl.monkeypatch.accelerate import fsdp2 as by_axolotl  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from resting import bases  # noqa: E402
from sees import FAMILIES  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

SEED, COUNT = 20262057, 40
DECODERS = {"gemma3": "Gemma3DecoderLayer", "mistral3": "Ministral3DecoderLayer", "qwen3_5": "Qwen3_5DecoderLayer"}
TOWER = ("model.visual.", "model.vision_tower.", "model.multi_modal_projector.")
NAMED = ["q_proj", "o_proj", "down_proj", "linear_fc1"]
IN_DECODER = r".*language_model.*(q_proj|o_proj|down_proj)"
HOW = [{"by": "accelerate", "adapters": ""}, {"by": "accelerate", "adapters": "decoder"},
       {"by": "accelerate", "adapters": "all"}, {"by": "axolotl", "adapters": ""}, {"by": "axolotl", "adapters": ""}]
"""axolotl wraps the matrices of adapters one by one, which is not described."""
PREPARES = {"accelerate": by_accelerate.fsdp2_prepare_model, "axolotl": by_axolotl.fsdp2_prepare_model}


def one(rng: random.Random, base: Case) -> Case:
    """A case of the same family as `base`."""
    case = copy.deepcopy(base)
    text, vision = case["fields"]["text_config"], case["fields"]["vision_config"]
    layers, depth = rng.randint(2, 4), rng.randint(1, 4)
    text |= {"num_hidden_layers": layers, "intermediate_size": rng.choice((384, 512, 777)),
             "vocab_size": rng.choice((512, 1001, 1536)), "num_key_value_heads": rng.choice((1, 2, 4))}
    if "layer_types" in text:
        text["layer_types"] = rng.choices(("linear_attention", "full_attention"), k=layers)
    vision |= {"depth" if "depth" in vision else "num_hidden_layers": depth,
               "hidden_size": rng.choice((96, 192)), "intermediate_size": rng.choice((264, 320))}
    if "head_dim" in vision:
        vision["head_dim"] = vision["hidden_size"] // 4
    case["fields"]["tie_word_embeddings"] = text["tie_word_embeddings"] = rng.random() < 0.5
    named = case["fields"]["model_type"] == "gemma3" or rng.random() < 0.5
    return case | {"images": 0, "frozen": [], "attention": "sdpa", "world": rng.choice((2, 2, 3, 4, 5, 6, 8, 12, 16)),
                   "batch": rng.choice((1, 1, 2)), "seq": rng.choice((64, 96, 128, 192, 256)),
                   "recompute": rng.random() < 0.4, "named": named, **rng.choice(HOW)}


def drawn(seed: int, count: int) -> list[Case]:
    """The cases, by the seed."""
    rng, given = random.Random(seed), bases()
    return [one(rng, rng.choice(given)) | {"name": f"r{number}"} for number in range(count)]


def built(case: Case) -> Any:
    """The model, in fp32 or with adapters in fp32 beside a base in bf16, checkpointed if the case asks for that."""
    torch.manual_seed(0)
    model = FAMILIES[case["fields"]["model_type"]].built(case).train()
    if case["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not case["adapters"]:
        return model
    model = get_peft_model(model.to(torch.bfloat16), LoraConfig(
        r=8, target_modules=NAMED if case["adapters"] == "all" else IN_DECODER))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def wrapped(model: Any, case: Case) -> Any:
    """The model around its units."""
    os.environ |= {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    classes = [DECODERS[case["fields"]["model_type"]]] if case["named"] else None
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=classes,
        mixed_precision_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    mesh = init_device_mesh("cpu", (case["world"],), mesh_dim_names=("dp_shard",))
    axes = SimpleNamespace(fsdp_dim_names=["dp_shard"])
    state = SimpleNamespace(fsdp_plugin=plugin, device_mesh=mesh, mixed_precision="bf16", parallelism_config=axes)
    return PREPARES[case["by"]](SimpleNamespace(
        state=state, mixed_precision="bf16", torch_device_mesh=mesh, device=torch.device("cpu"),
        parallelism_config=axes, is_main_process=False), model)


def units_of(model: Any) -> list[list[Any]]:
    """Module of each unit, "" for the root, with its elements."""
    found = []
    for name, module in model.named_modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        if group is not None and group.modules[0] is module:
            sizes = [one._orig_size.numel() for one in group.fsdp_params]
            found.append([name.removeprefix("base_model.model."), sum(sizes)])
    return sorted(found)


def of_tower(model: Any) -> dict[str, Any]:
    """Names of the tower's parameters."""
    return {name: one for name, one in model.named_parameters()
            if name.removeprefix("base_model.model.").startswith(TOWER)}


def updated(model: Any) -> dict[str, int]:
    """Parameters of the tower with a gradient, and with states after a step of AdamW with weight decay."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.1, foreach=False)
    inside = of_tower(model).values()
    before = [one.detach().to_local().clone() for one in inside]
    found = {"gradients": sum(one.grad is not None for one in inside)}
    optimizer.step()
    return found | {"states": sum(one in optimizer.state for one in inside), "changed": sum(
        not torch.equal(one.detach().to_local(), old) for one, old in zip(inside, before, strict=True))}


def measured(case: Case) -> Case:
    """A case's units, second step and update, or what the libraries say instead."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world"])
    try:
        model = wrapped(built(case), case)
        ids = torch.full((case["batch"], case["seq"]), 7)
        step = second_step(model, {"input_ids": ids})
        return {"units": units_of(model), **step, **updated(model)}
    except (ValueError, RuntimeError) as error:  # what is refused is measured too
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed", type=int, default=SEED)
    asked.add_argument("--count", type=int, default=COUNT)
    given = asked.parse_args()
    print_apart(by_name(drawn(given.seed, given.count)), measured)
