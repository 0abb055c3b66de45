"""torch's Muon over ordinary tensors: `tests/truth/probe_muon.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.optimizer_memory import newton_schulz_bytes, optimizer_sizes
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import TensorPolicy
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import Placed

FOUND: dict[str, Any] = json.loads((ROOT / "tests/truth/optimizers/muon-torch-2.13.0.json").read_text("utf-8"))
MUON = {"name": "muon"}
WORDS = {"float32": "fp32", "bfloat16": "bf16"}


def placed(shape: list[int], dtype: str) -> Placed:
    rows, columns = shape
    policy = TensorPolicy("m", *(TensorLayout((), WORDS[dtype]),) * 4)
    return Placed(TensorSpec("w", (rows, columns), ("a", "b"), "mlp"), policy, rows * columns, rows * columns,
                  (rows, columns), 1, ())


def test_a_step_over_ordinary_tensors_takes_what_torchs_takes() -> None:
    """Matrix after matrix, in both formats of gradients; momenta are as large as their parameters."""
    for name, case in FOUND["cases"].items():
        ours = max(newton_schulz_bytes(placed(shape, case["dtype"])) for shape in case["shapes"])
        assert [ours, ours] == case["found"]["peaks"], name
        sizes = [rows * columns * (4 if case["dtype"] == "float32" else 2) for rows, columns in case["shapes"]]
        assert [{"momentum_buffer": size} for size in sizes] == case["found"]["states"], name
    assert len(FOUND["cases"]) >= 40


def test_under_ddp_matrices_of_hidden_layers_are_muons() -> None:
    """Embedding, head and vectors keep two moments; the step holds the most of a matrix or of AdamW's roots."""
    plan = small.plan_of("ddp", {"dp_replicate": 2}, model="qwen3-0.6b", optimizer=MUON | {"implementation": "fused"})
    states = {one.spec.name: [name for name, _ in one.states] for one in plan.of_layer(1)}
    assert states["mlp.up_proj.weight"] == ["momentum_buffer"]
    assert states["self_attn.q_norm.weight"] == ["exp_avg", "exp_avg_sq"]
    assert [name for name, _ in plan.of_layer(0)[0].states] == ["exp_avg", "exp_avg_sq"]
    assert optimizer_sizes(plan).held == max(newton_schulz_bytes(one) for one in plan.of_layer(1)
                                             if len(one.spec.shape) == 2)


def test_where_parameters_are_flat_muon_is_refused_in_torchs_words() -> None:
    with pytest.raises(IllegalLayout, match=FOUND["refused"][:30]):
        small.prepared("fsdp1", {"dp_shard": 2}, optimizer=MUON)


def test_adapters_are_not_served_with_it() -> None:
    with pytest.raises(NotYet, match="muon under ddp"):
        small.prepared("ddp", {"dp_replicate": 1}, model="qwen3-0.6b", optimizer=MUON, method="lora", lora={"rank": 8})
