"""Automodel's experts of a latent width as measured around the experts, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.models.blocks import Branch, LayerKind, Moe
from simcore.operators.automodel import moe as module
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import mlp
from simcore.operators.automodel.options import RELEASE_0_7_0
from simcore.operators.automodel.tensors import tensors
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Param, Tape, Tensor

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-latent-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
S: dict[str, int] = STORED["shape"]
BLOCK = Moe(S["hidden"], S["experts"], S["top_k"], S["expert_ffn"], S["shared_ffn"], latent=S["latent"])
KIND = LayerKind("moe", "nemotron_h", S["hidden"], (Branch("norm", "mixer", BLOCK),))


def test_tensors_are_those_that_automodel_registers() -> None:
    found = {t.name.removeprefix("mixer."): list(t.shape) for t in tensors(KIND) if t.name.startswith("mixer.")}
    assert found == dict(STORED["registered"])


def _stand_in(env: Env, x: Tensor, _weights: Tensor, _indices: Tensor, _block: Moe, path: str) -> Tensor:
    return mlp(env, x, path, gated=False)


@pytest.mark.parametrize("name", STORED["layers"])
def test_events_are_those_that_were_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of tokens, and the statistics of a load that is not corrected, are left out: a few bytes a token."""
    monkeypatch.setattr(module, "_experts", _stand_in)
    row = STORED["layers"][name]
    case = row["case"]
    shapes = {t.name: t.shape for t in tensors(KIND)} | {
        "mixer.experts.up_proj.weight": (S["expert_ffn"], S["latent"]),
        "mixer.experts.down_proj.weight": (S["latent"], S["expert_ffn"])}
    params = {name: Param(name, shape, "bf16", trainable=True) for name, shape in shapes.items()}
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, options=RELEASE_0_7_0)
    env = Env(Tape({}, {}), run, RELEASE_0_7_0)
    x = env.tape.external((case["batch"], case["seq"], S["hidden"]), "bf16", HIDDEN, -1)
    x.node = Node()
    leaf = x.node
    out = module.moe(env, x, BLOCK, "mixer", wide_product=False)  # NemotronV3Model asks for it, not MoE
    out.disown()
    forward = env.tape.cut()
    del x
    env.tape.cut()
    env.tape.seed(out, env.tape.external(out.shape, out.dtype, GRAD_HIDDEN, 1))
    env.tape.backward()
    leaf.grads.pop(0).disown()
    small = 4 * case["batch"] * case["seq"] * S["experts"]
    for section, stored in ((forward, row["forward"]), (env.tape.cut(), row["backward"])):
        mine = [change[3] for change in section.rows if change[0] in (Op.ALLOC, Op.FREE)]
        first, second = ([change for change in one if abs(change) > small] for one in (mine, stored))
        assert grouped(first) == grouped(second)
