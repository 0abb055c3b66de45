"""Measures NeMo Automodel 0.7.0's mixture of experts of a latent width around its experts, event by event.

    python tests/truth/probe_automodel_latent.py > tests/truth/tape/automodel-latent-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process: `MoE` of Nemotron-H with its own router and shared expert. The routed experts are a
stand-in, an MLP of relu^2 on the projected tokens. Registered: names and shapes of the module with its own experts.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.moe.config import MoEConfig
from nemo_automodel.components.moe.layers import MLP, MoE
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPE = {"hidden": 256, "latent": 64, "experts": 16, "top_k": 4, "expert_ffn": 96, "shared_ffn": 192}
CASES: dict[str, dict[str, Any]] = {"of one": {"batch": 1, "seq": 192}, "of two": {"batch": 2, "seq": 192}}
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)


class Dense(MLP):
    """An MLP that is called as experts are."""

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return super().forward(x)


def config() -> MoEConfig:
    return MoEConfig(dim=SHAPE["hidden"], inter_dim=SHAPE["expert_ffn"], moe_inter_dim=SHAPE["expert_ffn"],
                     n_routed_experts=SHAPE["experts"], n_shared_experts=1, n_activated_experts=SHAPE["top_k"],
                     n_expert_groups=1, n_limited_groups=1, train_gate=True, gate_bias_update_factor=0.0,
                     score_func="sigmoid", route_scale=2.5, aux_loss_coeff=0.0, norm_topk_prob=True,
                     expert_activation="relu2", shared_expert_activation="relu2", dtype=torch.bfloat16,
                     shared_expert_inter_dim=SHAPE["shared_ffn"], force_e_score_correction_bias=True,
                     moe_latent_size=SHAPE["latent"])


def registered() -> list[Any]:
    with torch.device("meta"):
        made = MoE(config(), BACKEND)
    return [[n, list(p.shape)] for n, p in (*made.named_parameters(), *made.named_buffers())]


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    with fake:
        made = MoE(config(), BACKEND)
        made.experts = Dense(SHAPE["latent"], SHAPE["expert_ffn"], "torch", dtype=torch.bfloat16, activation="relu2")
    shape, seen = (case["batch"], case["seq"], SHAPE["hidden"]), []
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        for known in (*made.parameters(), *made.buffers()):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = made.train()(x)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


if __name__ == "__main__":
    mla.stand_in()
    rows = {name: events(case) for name, case in CASES.items()}
    print(json.dumps({"shape": SHAPE, "registered": registered()})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
