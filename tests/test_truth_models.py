"""Parameters of every preset against transformers itself (tests/truth/models, made by tests/truth/probe_models.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.graph import ModelGraph, build, known_presets, model_config
from simcore.tensor import TensorSpec

TRUTH = Path(__file__).parent / "truth" / "models" / "transformers-5.23.0.json"
ROWS: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


def graph(preset: str, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "test"), "hf")


def spelled(found: ModelGraph, *, buffers: bool) -> list[str]:
    """`path shape` of every tensor in running order; of buffers with the dtype."""
    specs = [(layer.path, t) for layer in found.layers for t in found.tensors[layer.kind] if t.is_buffer == buffers]
    return [f"{path}.{t.name} {'x'.join(map(str, t.shape))}{_dtype(t)}" for path, t in specs if not t.tied]


def _dtype(spec: TensorSpec) -> str:
    return " float32" if spec.stored == "fp32" else ""


def test_every_preset_but_nemotron_h_is_asked_for() -> None:
    assert set(ROWS) == {p for p in known_presets() if not p.startswith("nemotron")}


@pytest.mark.parametrize("preset", ROWS)
def test_counts_by_component(preset: str) -> None:
    found = graph(preset)
    assert {name: found.count(name) for name in found.components()} == ROWS[preset]["components"]
    assert found.count() == ROWS[preset]["parameters"]


@pytest.mark.parametrize("preset", ROWS)
def test_names_shapes_and_order_of_the_first_layers(preset: str) -> None:
    found = graph(preset, num_hidden_layers=ROWS[preset]["num_hidden_layers"])
    assert spelled(found, buffers=False) == ROWS[preset]["tensors"]


@pytest.mark.parametrize("preset", ROWS)
def test_buffers_of_the_layers_and_around_them(preset: str) -> None:
    """Rotary frequencies are told as bytes of the architecture: fp32, two tables."""
    found = graph(preset, num_hidden_layers=ROWS[preset]["num_hidden_layers"])
    rotary = [name for name in ROWS[preset]["buffers"] if "rotary" in name]
    assert spelled(found, buffers=True) == [name for name in ROWS[preset]["buffers"] if name not in rotary]
    assert sum(size for _, size in found.architecture.buffers) == sum(4 * int(name.split()[1]) for name in rotary)
