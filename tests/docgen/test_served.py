"""The stored matrix of models is what the frameworks' tables answer."""

from __future__ import annotations

import pytest

from simcore.docgen.served import asked_of, served
from simcore.frameworks.registry import known_frameworks
from simcore.models.graph import known_presets, model_config

FAMILIES = {str(model_config(name, None, "test")["model_type"]): name for name in known_presets()}
"""The last preset of each family: asking all takes half a minute."""


def test_every_preset_and_framework_is_stored() -> None:
    assert tuple(served()) == known_presets()
    assert {tuple(entry["methods"]) for entry in served().values()} == {known_frameworks()}


@pytest.mark.parametrize("preset", FAMILIES.values())
def test_what_is_stored_is_answered(preset: str) -> None:
    assert served()[preset] == asked_of(preset), "run: python -m simcore.docgen.served > simcore/models/served.json"


def test_known_holes_are_holes() -> None:
    """Automodel has no layers of Zamba 2 here; Megatron packs no base."""
    assert served()["zamba2-7b"]["methods"]["automodel"] == []
    assert {tuple(entry["methods"]["megatron"]) for entry in served().values()} == {(), ("full", "lora")}
