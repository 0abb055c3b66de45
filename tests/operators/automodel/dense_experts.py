"""Layers of Automodel's sparse models with an MLP in the place of routed experts, as probes measure them on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simcore.models.blocks import Mlp
from simcore.models.graph import ModelGraph
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.layers import linear
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.tensors import tensors
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section, Tensor

__all__ = ["changes", "layer_of"]


def layer_of(made: ModelGraph, case: Mapping[str, Any], ffn: int, module: str,
             patched: pytest.MonkeyPatch) -> RecordedLayer:
    """Recording of layer `case["layer"]`; `ffn`: width of the MLP, `module`: the experts' name in the layer."""
    kind = made.kinds[made.layers[1 + case["layer"]].kind]
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in tensors(kind) if not t.is_buffer}
    hidden = kind.hidden
    parts = () if isinstance(kind.branches[1].block, Mlp) else ("gate_proj", "up_proj", "down_proj")
    for name in parts:
        shape = (hidden, ffn) if name == "down_proj" else (ffn, hidden)
        params[f"{module}.{name}.weight"] = Param(f"{module}.{name}.weight", shape, "bf16", trainable=True)

    def dense(env: Env, x: Tensor, *_: Any) -> Tensor:
        return linear(env, aten.mul(env.tape, aten.silu(env.tape, linear(env, x, f"{module}.gate_proj")),
                                    linear(env, x, f"{module}.up_proj")), f"{module}.down_proj")

    patched.setattr("simcore.operators.automodel.implementation.moe_of", dense)
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, ep=2, rows_per_token=2 << 16,
                        checkpoint="full" if case.get("checkpoint") else "none", options=AutomodelOptions())
    return record(kind, run, {}, {})


def changes(section: Section) -> list[int]:
    """Signed bytes of allocations and frees, in order."""
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]
