"""MiniMax-M2: the shape of layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, Moe
from simcore.models.graph import ModelGraph, build, model_config


def graph(**changed: Any) -> ModelGraph:
    return build({**model_config("minimax-m2", None, "model"), **changed}, "automodel")


def test_every_layer_has_experts_and_norms_over_all_heads() -> None:
    assert [branch.block for branch in graph().kinds[1].branches] == [
        Attention(3072, 48, 8, 128, rotary=True, qk_norm=True, rotated=64, whole_norms=True),
        Moe(3072, 256, 8, 1536, 0, gated=True)]
    assert graph().architecture.pattern == "E" * 62


@pytest.mark.parametrize(("changed", "told"), [
    ({"use_qk_norm": False}, "use_qk_norm: attention without norms"), ({"scoring_func": "softmax"}, "scoring_func"),
    ({"rotary_dim": 3}, "rotary_dim: expected pairs"), ({"rotary_dim": 130}, "rotary_dim")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
