"""Hunyuan 3: the published count, the shape of layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import ModelGraph, build, model_config


def graph(**changed: Any) -> ModelGraph:
    return build({**model_config("hy3-preview", None, "model"), **changed}, "automodel")


def test_layers_and_count() -> None:
    """295 B, says Automodel's page."""
    dense, sparse = graph().kinds[1:3]
    assert [b.block for b in dense.branches] == [Attention(4096, 64, 8, 128, rotary=True, qk_norm=True),
                                                 Mlp(4096, 13312)]
    assert sparse.branches[1].block == Moe(4096, 192, 8, 1536, 1536, gated=True)
    assert (graph().count(), graph().architecture.pattern) == (295_033_528_320, "D" + "E" * 79)


@pytest.mark.parametrize(("changed", "told"), [
    ({"attention_bias": True}, "attention_bias: not modelled yet"), ({"mlp_bias": True}, "mlp_bias: not modelled yet"),
    ({"moe_router_enable_expert_bias": False}, "a router without a correction bias is not modelled yet")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
