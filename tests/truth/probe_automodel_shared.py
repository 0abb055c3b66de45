"""Measures peaks of pipeline ranks whose layers of GLM-5.2 choose keys together, in nemo-automodel 0.7.0.

    python tests/truth/probe_automodel_shared.py > tests/truth/tape/automodel-shared-0.7.0-torch-2.13.0.json

As `probe_automodel_stage.py`, with dense layers of `probe_automodel_chosen.py`: `shared` of them some take the keys of
an earlier one, so that stages send these on; `full` none does. Checkpoints are of whole layers, as over experts' ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import probe_automodel_chosen as chosen
import probe_automodel_mla as mla
import probe_automodel_stage as stage
from nemo_automodel.components.models.glm_moe_dsa.model import GlmMoeDsaForCausalLM
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

TYPES = {"shared": ["full", "shared", "shared", "full", "shared", "full"], "full": ["full"] * 6}
SEQ, UNPATCHED = 256, {"patch_inner_model": False, "patch_causal_lm_model": False}
CASES: dict[str, dict[str, Any]] = {
    f"rank {rank}{way}{parts}": {"rank": rank, "pp": 2, "world": 2, "microbatches": 4, **more, **chunks}
    for rank in (0, 1) for way, more in {"": {}, ", checkpointed": {"replayed": True}}.items()
    for parts, chunks in {"": {}, ", interleaved": {"chunks": 3}}.items()}


def model_of(types: list[str], *, replayed: bool) -> Any:
    made = chosen.config("glm_moe_dsa")
    made.num_hidden_layers, made.indexer_types, made.mlp_layer_types = len(types), types, ["dense"] * len(types)
    model = GlmMoeDsaForCausalLM(made, backend=mla.BACKEND).train()
    for name, layer in list(model.model.layers.items()):
        layer.self_attn.attn_func = chosen.attention
        if layer.self_attn.indexer is not None:
            chosen.stand_in_norm(layer.self_attn.indexer.k_norm)
        if replayed:
            model.model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
    return model


def peaks(case: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, types in TYPES.items():
        made = model_of(types, replayed=case.get("replayed", False))
        stage.dense.model_of = lambda _case, model=made: model
        with stage.unpooled():
            found[name] = stage.measure({"family": "glm", **UNPATCHED} | case)["peak"]
    return {"case": case, "peaks": found}


if __name__ == "__main__":
    mla.stand_in()
    stage.stand_in()
    stage.SEQ, stage.OF_STAGES = SEQ, tuple(UNPATCHED)
    os.environ.update(WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")
    with contextlib.redirect_stdout(sys.stderr):
        rows = {name: peaks(case) for name, case in CASES.items()}
    print(json.dumps({"shape": chosen.SHAPE, "seq": SEQ, "types": TYPES, "ranks": rows}, indent=1))
