"""MoonViT and Kimi-VL's projector before DeepSeek-V3, event by event, as Automodel's own code ran them on a CPU."""

from __future__ import annotations

import json
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
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/kimi-tower-0.7.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))
SIZES = TRUTH["sizes"]
CASES = tuple(name for name in TRUTH if isinstance(TRUTH[name], dict) and "case" in TRUTH[name])
TEXT = {"hidden_size": SIZES["hidden"], "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
ANGLES = 4 * SIZES["seq"] * TEXT["qk_rope_head_dim"]
"""Bytes of the decoder's angles, which the stand-in for it does not make."""


class Model:
    """The parts of a case up to the projector, recorded on their own."""

    def __init__(self, case: dict[str, Any]) -> None:
        slots = dict[tuple[str, str], int]()
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

    @staticmethod
    def events(*sections: Section) -> Events:
        return [row[3] for section in sections for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]


def patches_of(case: dict[str, Any]) -> int:
    height, width = case["sides"]
    return case["images"] * (height // 14) * (width // 14)


def of_gpu(case: dict[str, Any], events: Events) -> Events:
    """Measured events without what a CPU alone makes, and with statistics of norms in fp32, as a GPU keeps them.

    A CPU copies images for the convolution, tables of weights to interpolate, the attention's mask to fp32 before it
    is added to scores, and sums of columns of a norm's backward.
    """
    rows, width, vision = patches_of(case), SIZES["vision"]["hidden_size"], SIZES["vision"]
    squares, found = 4 * rows**2, list[Any]()
    images = rows * 588 * 2
    sides = {2 * one * two for one in (side // 14 for side in case["sides"]) for two in (4, 1)}
    assert width not in sides
    for place, size in enumerate(events):
        before, behind = events[place - 1:place], events[place + 1:place + 2]
        if abs(size) == squares and (behind == [-size] or before == [-size]) and size * (size < 0 or -1) < 0:
            if (size > 0 and behind == [-size]) or (size < 0 and before == [-size]):
                continue
        found.append(2 * size if abs(size) == 2 * rows else size)
    return [size for size in found if abs(size) not in (images, 4 * width) or vision is None]


def test_parameters_are_those_of_its_own_code() -> None:
    graph = build({"model_type": "kimi_vl", "vision_config": SIZES["vision"], "text_config": TEXT}, "automodel")
    found = [f"{layer.path}.{spec.name} {'x'.join(map(str, spec.shape))}" for layer in graph.layers
             for spec in graph.tensors[layer.kind] if isinstance(graph.kinds[layer.kind].block, VisionPart)]
    assert found == [f"model.{name}" for name in TRUTH["names"]]


def test_flash_attn_is_never_called() -> None:
    assert TRUTH["attention"] == {"flash_attention_2": "None", "sdpa": "None"}
