"""Towers of Qwen 3.5 against vLLM's own, built and run on torch's device "meta"."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of, model_config
from simcore.models.placed_blocks import PlacedLayer, PlacedMerger
from simcore.vllm.release import RELEASES
from simcore.vllm.vision import encoder, tower_buffers, tower_weights

CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/vllm/towers-0.25.1.json").read_text(encoding="utf-8"))


def architecture(case: dict[str, Any]) -> Architecture:
    """The model of a case, or one with the decoder of Qwen 3.5 0.8B."""
    fields = dict(model_config("qwen3.5-0.8b" if case["model"] == "small" else case["model"], None, ""))
    return architecture_of({**fields, "vision_config": {**fields["vision_config"], **case["vision"]}})


def test_parameters_of_a_rank_are_those_of_vllm_s_modules() -> None:
    for case in CASES:
        found, sizes = architecture(case), case["sizes"]
        layers = sum(isinstance(kind.block, PlacedLayer) for _, kind in found.parts)
        assert layers == case["depth"], case["model"]
        held = [weight.numel for weight in tower_weights(found, case["tp"])]
        assert sum(held) == sizes["patches"] + layers * sizes["layer"] + sizes["merger"], (case["model"], case["tp"])
        assert held[0] == sizes["patches"]
        assert held[-1] == sizes["merger"]
        assert tower_buffers(found) == case["table"]


def test_the_profile_run_of_an_image_is_as_high_as_what_vllm_s_forward_holds() -> None:
    for case in CASES:
        found = architecture(case)
        merger = next(kind.block for _, kind in found.parts if isinstance(kind.block, PlacedMerger))
        assert merger.hidden == case["vision"]["out_hidden_size"]
        made = encoder(found, case["tp"], (16384, 1, 16384), RELEASES["0.25.1"])
        assert (made.highest, made.stays) == (case["highest"], case["stays"]), (case["model"], case["tp"])


def test_an_engine_encodes_as_many_images_as_a_pass_has_tokens() -> None:
    case = CASES[0]
    one, three = (encoder(architecture(case), 1, (tokens, 8, 65536), RELEASES["0.25.1"])
                  for tokens in (8192, 3 * 16384))
    assert (three.highest, three.stays) == (3 * one.highest, 3 * one.stays)
    assert one.stays == case["stays"]
