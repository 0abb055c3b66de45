"""Ling 2.0 and Hunyuan 3: published counts, the shape of layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph, build, model_config


def graph(preset: str = "ling-mini-2.0", **changed: Any) -> ModelGraph:
    return build({**model_config(preset, None, "model"), **changed}, "automodel")


def test_the_published_count() -> None:
    """16.26 B, says Ling-V2's README."""
    assert graph().count() == 16_255_638_528


def test_layers() -> None:
    dense, sparse = graph().kinds[1:3]
    assert [branch.block for branch in dense.branches] == [
        Attention(2048, 16, 4, 128, rotary=True, qk_norm=True, rotated=64), Mlp(2048, 5120)]
    assert sparse.branches[1].block == Moe(2048, 256, 8, 512, 512, gated=True, num_groups=8, chosen_groups=4)


def test_rotated_dimensions_may_be_counted() -> None:
    """Ling-1T has no factor, but `rotary_dim`."""
    assert graph(rotary_dim=32).kinds[1].branches[0].block == Attention(2048, 16, 4, 128, rotary=True, qk_norm=True,
                                                                        rotated=32)


@pytest.mark.parametrize(("changed", "told"), [
    ({"use_bias": True}, "use_bias: not modelled yet"), ({"score_function": "softmax"}, "score_function: expected"),
    ({"moe_router_enable_expert_bias": False}, "moe_router_enable_expert_bias: a router without a correction bias"),
    ({"output_dropout": 0.1}, "output_dropout: dropout is not modelled yet"),
    ({"n_group": 3}, "n_group: expected equal groups"), ({"rotary_dim": 1}, "expected pairs")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)


def test_hunyuan() -> None:
    """295 B, says Automodel's page."""
    dense, sparse = graph("hy3-preview").kinds[1:3]
    assert [b.block for b in dense.branches] == [Attention(4096, 64, 8, 128, rotary=True, qk_norm=True),
                                                 Mlp(4096, 13312)]
    assert sparse.branches[1].block == Moe(4096, 192, 8, 1536, 1536, gated=True)
    made = graph("hy3-preview")
    assert (made.count(), made.architecture.pattern) == (295_033_528_320, "D" + "E" * 79)


@pytest.mark.parametrize(("changed", "told"), [
    ({"attention_bias": True}, "attention_bias: not modelled yet"), ({"mlp_bias": True}, "mlp_bias: not modelled yet"),
    ({"moe_router_enable_expert_bias": False}, "a router without a correction bias is not modelled yet")])
def test_refused_of_hunyuan(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph("hy3-preview", **changed)
