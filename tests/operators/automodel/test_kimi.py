"""MoonViT and Kimi-VL's projector before DeepSeek-V3, event by event, as Automodel's own code ran them on a CPU."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from checkout import ROOT
from eventlog import Events, grouped
from simcore.models.frozen import with_frozen
from simcore.models.graph import build
from simcore.models.vision.around import IMAGE_SIDES
from simcore.models.vision_blocks import VisionPart
from simcore.operators.automodel import implementation as automodel
from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, Op, Param, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/kimi-tower-0.7.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))
SIZES = TRUTH["sizes"]
CASES = tuple(name for name in TRUTH if isinstance(TRUTH[name], dict) and "case" in TRUTH[name])
TEXT = {"hidden_size": SIZES["hidden"], "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
SMALL = 100
"""Bytes of numbers of images, and of what a CPU interpolates by."""
ANGLES = 4 * SIZES["seq"] * TEXT["qk_rope_head_dim"]
"""Bytes of the decoder's angles, which the stand-in for it does not make."""


class Model:
    """The parts of a case up to the projector, recorded on their own."""

    def __init__(self, case: dict[str, Any]) -> None:
        slots = self.slots = dict[tuple[str, str], int]()
        fields = {"model_type": "kimi_vl", "vision_config": SIZES["vision"], "text_config": TEXT,
                  IMAGE_SIDES: case["sides"]}
        graph, unmatched = with_frozen(build(fields, "automodel"), tuple(f"model.{name}" for name in case["frozen"]))
        assert not unmatched
        self.tapes: list[RecordedLayer] = []
        trains = False
        for layer in graph.layers[:1 + graph.num_tower_parts]:
            params = {spec.name: Param(spec.name, spec.shape, "bf16", spec.trainable)
                      for spec in graph.tensors[layer.kind] if not spec.is_buffer}
            seen = isinstance(graph.kinds[layer.kind].block, VisionPart)
            run = LayerWorkload(1, SIZES["seq"], "bf16", params, images=case["images"], input_requires_grad=trains,
                                embedding_trains=True, options=AutomodelOptions(pixels="bf16"))
            trains |= seen and any(param.trainable for param in params.values())
            self.tapes.append(automodel.record(graph.kinds[layer.kind], run, slots, {}))

    def events(self, *sections: Section, ends: int = -1) -> Events:
        """Sizes of births and deaths; (size,) of a sum of two gradients, or what is in slot `ends`."""
        sums = {ends, *(number for (name, _), number in self.slots.items() if name.endswith("grad_sum"))}
        return [(row[3],) if row[2] in sums and row[3] > 0 else row[3] for section in sections for row in section.rows
                if row[0] in (Op.ALLOC, Op.FREE)]


def patches_of(case: dict[str, Any]) -> int:
    height, width = case["sides"]
    return int(case["images"] * (height // 14) * (width // 14))


def of_gpu(case: dict[str, Any], at: str, events: Events) -> Events:
    """Measured events without what a CPU alone makes, and with statistics of norms in fp32, as a GPU keeps them.

    A CPU copies images for the convolution, and the attention's mask to fp32 before it is added to scores, and sums
    rows of a norm's backward; tables by which it interpolates are as small as lengths of images, which are left out.
    Squares of patches are a tensor for each image, here one.
    """
    rows, width = patches_of(case), SIZES["vision"]["hidden_size"]
    passing, square = {4 * rows**2, *([4 * width] if at.startswith("backward") else [])}, 2 * rows * width
    kept: Events = []
    for size in events:
        if kept and size == -kept[-1] and -size in passing:
            kept.pop()
        elif abs(size) != rows * 588 * 2 and abs(size) > SMALL:
            kept.append(size)
    found = list(kept)
    for place, pair in enumerate(pairwise(kept)):  # numbers of tokens are as large, and alone
        if pair in ((2 * rows, 2 * rows), (-2 * rows, -2 * rows)):
            found[place:place + 2] = [2 * size for size in pair]
    part = square // case["images"]
    for sign in (1, -1) if at in ("norm", "projector") and case["images"] > 1 else ():
        place = found.index(sign * part) if sign * part in found else -1
        found[place:place + case["images"]] = [sign * square] if place >= 0 else found[place:place + case["images"]]
    return found


def without_sums(events: Events) -> Events:
    """Recorded events with sums of two gradients in place, as torch makes them without a dispatch mode."""
    found: Events = []
    owed: list[int] = []
    for size in events:
        if isinstance(size, tuple):
            owed.append(-size[0])
        elif size in owed:
            owed.remove(size)
        elif abs(size) > SMALL:
            found.append(size)
    return found


def test_parameters_are_those_of_its_own_code() -> None:
    graph = build({"model_type": "kimi_vl", "vision_config": SIZES["vision"], "text_config": TEXT}, "automodel")
    found = [f"{layer.path}.{spec.name} {'x'.join(map(str, spec.shape))}" for layer in graph.layers
             for spec in graph.tensors[layer.kind] if isinstance(graph.kinds[layer.kind].block, VisionPart)]
    assert found == [f"model.{name}" for name in TRUTH["names"]]


def test_flash_attn_is_never_called() -> None:
    assert TRUTH["attention"] == {"flash_attention_2": "None", "sdpa": "None"}


def sections_of(model: Model) -> dict[str, Events]:
    """Recorded events by section, under the names of the measured ones; without the decoder's angles."""
    _, patches, first, last, norm, end = model.tapes
    whole = [2 * SIZES["seq"] * SIZES["hidden"]] * 2
    merged = model.events(end.forward)
    merged = [size for size in merged if size != ANGLES and abs(size) != whole[0]]  # written in place
    back = model.events(end.backward)
    assert back[:1] == [-ANGLES]
    found = {"patches": model.events(patches.forward), "layer 0": model.events(first.forward, first.after),
             "layer 1": model.events(last.forward, last.after), "norm": model.events(norm.forward),
             "projector": merged, "decoder": model.events(end.late),
             "backward projector": [*back[1:], *model.events(norm.backward)],
             "backward layer 1": model.events(last.backward, ends=GRAD_HIDDEN),
             "backward layer 0": model.events(first.backward, ends=GRAD_HIDDEN),
             "backward patches": model.events(patches.backward)}
    return {at: without_sums(events) for at, events in found.items()}


def measured(case: dict[str, Any], sections: list[dict[str, Any]]) -> dict[str, Events]:
    """Measured events by the same names: those of the norm's backward behind those of the projector's."""
    found = {section["at"]: of_gpu(case, section["at"], section["events"]) for section in sections}
    found["backward projector"] += found.get("backward norm", [])
    found["decoder"] = [size for size in found["decoder"] if size < 0]
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_the_tower_and_its_projector(name: str) -> None:
    """In order; the angles of patches die where the patches' backward ends, not in the first layer's."""
    case = TRUTH[name]["case"]
    mine, truth = sections_of(Model(case)), measured(case, TRUTH[name]["sections"])
    angles = -4 * patches_of(case) * SIZES["vision"]["hidden_size"] // SIZES["vision"]["num_attention_heads"]
    if not case["frozen"]:
        assert mine["backward patches"].pop() == angles
        mine["backward layer 0"].append(angles)
    assert truth.keys() - mine.keys() <= {"begin", "embedding", "returned", "backward norm", "backward embedding",
                                          "end"}
    for at, events in mine.items():
        same = sorted if at == "backward layer 0" else grouped
        assert same(events) == same(truth.get(at, [])), at
