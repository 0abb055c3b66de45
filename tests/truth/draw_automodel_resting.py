"""Draws small models with a vision tower that are given text alone under Automodel, and measures their steps.

    python tests/truth/draw_automodel_resting.py > tests/truth/tape/automodel-drawn-resting-0.7.0-torch-2.13.0.json

Families, ranks, copies, sizes, what is frozen, adapters in the decoder or throughout, and checkpoints; each case as
`probe_automodel_vision.py` measures it. Of the first drawing those of NeMo RL's workers (`policy`) are left out:
another is of them, by their own wrapping (Automodel 24b47e856 distributed/parallelizer.py, `pinned`). Nothing is drawn
again because of what came out.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from typing import Any

import draw_automodel_vision as seeing
import image_stand_ins as stand
import probe_automodel_dense as dense
import probe_automodel_vision as probe
import torch.distributed as dist
from drawing import Case, by_name, chosen, maybe, numbered
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SEED, COUNT = 20261601, 44
POLICY_SEED, POLICY_COUNT = 20261602, 16
MODELS = ("mistral3", "qwen2.5-vl", "qwen3-vl", "qwen3.5")


def one(rng: random.Random) -> Case:
    """A case of any of the families."""
    name = rng.choice(MODELS)
    fields = copy.deepcopy(probe.MODELS[name]["fields"])
    kind = fields["model_type"]
    fields |= {"text_config": seeing.decoder(rng, kind, fields["text_config"]),
               "vision_config": seeing.tower(rng, kind, fields["vision_config"])}
    fields["tie_word_embeddings"] = fields["text_config"]["tie_word_embeddings"] = rng.random() < 0.5
    case: Case = {"model": name, "fields": fields, "world": rng.choice((2, 3, 4, 4, 6, 8, 8, 16)),
                  "batch": rng.choice((1, 1, 2)), "images": 0, "attention": "sdpa",
                  "freeze": dict(chosen(rng, (probe.FROZEN, 3), (probe.TRAINED, 2))),
                  "seq": rng.choice((64, 96, 128, 192, 256, 384))}
    if case["world"] % 2 == 0:
        maybe(rng, case, 0.2, replicas=2)
    if rng.random() < 0.3:
        case |= {"lora": rng.choice((4, 8, 16)), "exclude_modules": chosen(
            rng, (seeing.OUTSIDE, 2), (["*lm_head*"], 1))}
    elif kind != "qwen3_5":
        maybe(rng, case, 0.35, policy=True)
    if "policy" not in case:
        maybe(rng, case, 0.3, checkpoint=True)
    return case


def of_policy(rng: random.Random) -> Case:
    """A worker of NeMo RL with transformers' layers, on as many ranks that cut all parameters."""
    while True:
        case = one(rng)
        if case["model"] != "qwen3.5":
            return {key: value for key, value in case.items() if key not in (
                "lora", "exclude_modules", "checkpoint", "replicas")} | {"policy": True}


def pinned(model: Any, _mesh: Any) -> Any:
    """Layers in lists, but each last, reshard; all else is the root's, whatever is frozen."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in [one for one in model.modules() if isinstance(one, nn.ModuleList)]:
        for number, layer in enumerate(module):
            fully_shard(layer, mesh=mesh, mp_policy=probe.WIDE, reshard_after_forward=number < len(module) - 1)
    return fully_shard(model, mesh=mesh, mp_policy=probe.WIDE, reshard_after_forward=False)


def measured(case: Case) -> Case:
    """Measured values of a case, or what the libraries say instead."""
    probe.start(case["world"])
    probe.parallelize_model = pinned if case.get("policy") else parallelize_model
    try:
        return probe.measure(case)
    except Exception as error:  # noqa: BLE001 - what is refused is measured too
        return {"case": case, "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    stand.stand_in()
    cases = {name: case for name, case in by_name(numbered("r", one)(SEED, COUNT)).items() if "policy" not in case}
    cases |= by_name(numbered("p", of_policy)(POLICY_SEED, POLICY_COUNT))
    with contextlib.redirect_stdout(sys.stderr):
        rows = {name: measured(cases[name]) for name in sys.argv[1:] or cases}
    print(dense.lines(rows))
