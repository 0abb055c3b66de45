"""Small scenarios that are put to the engine: a step of them runs, is refused, or is not modelled yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from simcore.errors import IllegalLayout, NotYet, RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.models.graph import ModelGraph
from simcore.models.vision_blocks import SoundPart, VisionPart, sizes_vary
from simcore.simulate import check_step

__all__ = ["ANSWERS", "METHODS", "PLACED", "asked", "best", "reading_images", "scenario_of"]

_IMAGES: Final[dict[str, Any]] = {"seq_len": 512, "images": 1}
_SIDE: Final = 448
"""Pixels of an image's side, a multiple of what every model here merges into a token."""
METHODS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "full": ({"training": {"method": "full"}},),
    "lora": ({"training": {"method": "lora"}},
             {"training": {"method": "lora"}, "framework_options": {"use_orig_params": True}}),
    "qlora": ({"training": {"method": "qlora"}},
              {"training": {"method": "qlora", "precision": {"params": "bf16"}},
               "framework_options": {"use_orig_params": True, "bnb_4bit_quant_storage": "bfloat16"}}),
}
"""Training methods, each with the ways to ask for it; one that is served is enough."""
PLACED: Final = "placement only"
"""Answer where tensors are placed, and a step is not simulated: operators of the layers are missing."""
ANSWERS: Final = ("yes", PLACED, "not yet", "refused", "-")
"""Answers of `asked`, the best first."""
_WORDS: Final = {NotYet: "not yet", IllegalLayout: "refused"}


def asked(keys: dict[str, Any]) -> str:
    """Answer of the engine to a small scenario with these keys, one of `ANSWERS`; "-" for one that cannot be asked.

    "yes" is what `run` simulates: the operations of a step are written out by `check_step`, as for `check`.
    """
    try:
        scenario = scenario_of(keys)
        prepare(scenario)
    except RankscopeError as error:
        return _WORDS.get(type(error), "-")
    try:
        check_step(scenario)
    except RankscopeError as error:
        return PLACED if isinstance(error, NotYet) else _WORDS.get(type(error), "-")
    return "yes"


def best(answers: Iterable[str]) -> str:
    """The best of several answers, of which those behind a "yes" are not asked for; "-" for none."""
    found = {"-"}
    for answer in answers:
        found.add(answer)
        if answer == ANSWERS[0]:
            break
    return min(found, key=ANSWERS.index)


def reading_images(keys: dict[str, Any], graph: ModelGraph, versions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Keys of the same scenario of the model `graph` with an image in each sequence.

    First with a frozen vision tower, which adapters are left out of, with eager attention, which any mask of images
    needs, and with the framework's own; then with all that trains, and with the tower frozen, in each of its
    `versions`. A model without a tower: the keys as they are.
    """
    parts = [(layer, graph.kinds[layer.kind].block) for layer in graph.layers]
    tower = [layer for layer, block in parts if isinstance(block, VisionPart) and not isinstance(block, SoundPart)]
    if not tower:
        yield keys
        return
    path = ".".join(tower[0].path.split(".")[:2])
    sound = sorted({layer.path for layer, block in parts if isinstance(block, SoundPart)})
    sides = {"image_height": _SIDE} if sizes_vary(graph.kinds[tower[0].kind].block) else {}
    adapted = keys.get("training", {}).get("method") == "lora"
    adapters = {"lora": {"exclude_modules": [f"{path}.*", "*projector*", "*embed_vision*"]}} if adapted else {}
    training = {**keys.get("training", {}), **_IMAGES, **sides, **adapters, "frozen": [] if adapted else [path]}
    for attention in ({"attn_implementation": "eager"}, {}):
        options = {**keys.get("framework_options", {}), **attention}
        yield {**keys, "training": training, "framework_options": options}
    for version in versions:
        trained = {**keys.get("training", {}), **_IMAGES, **sides}
        for frozen in ([], [path, *sound])[:1 + (not adapted)]:
            yield {**keys, "framework_version": version, "training": {**trained, "frozen": frozen}}


def scenario_of(keys: dict[str, Any]) -> Scenario:
    """Scenario of 64 tokens on DGX H100 with these keys."""
    batch = {"global_batch_size": 16} if keys.get("mesh", {}).get("pp", 1) > 1 else {}  # stages need microbatches
    training = {"seq_len": 64, **batch, **keys.get("training", {})}
    whole = {"name": "support", "topology": "dgx-h100", **keys, "training": training}
    return parse_scenario(parse_document(json.dumps(whole), "support"))
