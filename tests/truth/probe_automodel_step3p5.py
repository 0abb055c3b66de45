"""Measures layers of nemo-automodel 0.7.0's Step 3.5 event by event; what the model registers, in two sizes.

    python tests/truth/probe_automodel_step3p5.py > tests/truth/tape/automodel-step3p5-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process, with the stand-ins of `probe_automodel_sparse.py`: attention keeps what TE's does,
the compiled rotation of query and key makes two tensors and keeps the table. Norms, tables, gates of heads, MLPs and
shared experts are Automodel's own and run as they are; routed experts are an MLP in their place. `drawn`: sizes by a
seed that was not used while the layers were written.
"""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.step3p5 import layers as step_layers
from nemo_automodel.components.models.step3p5 import model as step
from nemo_automodel.components.moe.layers import MLP
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

FULL, SLIDING = "full_attention", "sliding_attention"
SHAPE: dict[str, Any] = {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_attention_groups": 2, "head_dim": 32, "attention_other_setting": {
        "attention_type": SLIDING, "num_attention_heads": 12, "num_attention_groups": 2, "head_dim": 32},
    "layer_types": [FULL, SLIDING, FULL, SLIDING], "sliding_window": 64, "partial_rotary_factors": [0.5, 1, 0.5, 1],
    "use_head_wise_attn_gate": True, "moe_layers_enum": "2,3", "moe_num_experts": 8, "moe_top_k": 2,
    "moe_intermediate_size": 48, "share_expert_dim": 80, "moe_router_activation": "sigmoid",
    "use_moe_router_bias": True, "need_fp32_gate": True, "swiglu_limits_shared": [0, 0, 0, 16]}
CASES: dict[str, dict[str, Any]] = {
    **{f"layer {number}": {"layer": number, "batch": 2, "seq": 192} for number in range(4)},
    **{f"layer {number} checkpointed": {"layer": number, "batch": 1, "seq": 128, "checkpoint": True}
       for number in range(4)},
    "without gates": {"layer": 1, "batch": 1, "seq": 128, "overrides": {"use_head_wise_attn_gate": False}},
}
PRESETS = Path(__file__).resolve().parents[2] / "simcore" / "models" / "presets"
COUNT, SEED = 48, 20261204


class Rotated(torch.autograd.Function):
    """Both in new tensors; the table is kept."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(table)
        ctx.shapes = q.shape, k.shape
        return q.new_empty(q.shape), k.new_empty(k.shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _table, = ctx.saved_tensors
        return *(grads[0].new_empty(shape) for shape in ctx.shapes), None


class Dense(MLP):
    """An MLP that is called as experts are."""

    def forward(self, x: torch.Tensor, _mask: Any = None) -> torch.Tensor:
        return super().forward(x)


def drawn(seed: int, number: int) -> dict[str, Any]:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:step:{number}")
    heads, groups, dim = pick.choice((4, 6, 8)), pick.choice((1, 2)), pick.choice((16, 32, 64))
    wide = groups * pick.choice((3, 4, 6, 7))
    overrides = {
        "hidden_size": pick.choice((128, 192, 320)), "intermediate_size": pick.choice((96, 344, 520)),
        "num_attention_heads": heads, "num_attention_groups": groups, "head_dim": dim,
        "attention_other_setting": {"num_attention_heads": wide, "num_attention_groups": pick.choice((1, groups)),
                                    "head_dim": dim},
        "partial_rotary_factors": [pick.choice((0.25, 0.5, 1)) for _ in range(4)],
        "use_head_wise_attn_gate": pick.random() < 0.8, "moe_intermediate_size": pick.choice((40, 96)),
        "share_expert_dim": pick.choice((40, 96, 168)),
        "swiglu_limits_shared": [0, 0, pick.choice((0, 16)), pick.choice((0, 16))]}
    return {"layer": pick.randrange(4), "batch": pick.choice((1, 2, 3)), "seq": pick.choice((48, 96, 160, 256)),
            "overrides": overrides, **({"checkpoint": True} if pick.random() < 0.4 else {})}


def config(overrides: dict[str, Any]) -> Any:
    """Published files bring their own class, which holds what they say."""
    fields = {**SHAPE, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "attention_bias": False,
              "max_position_embeddings": 4096, "tie_word_embeddings": False,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **overrides}
    return SimpleNamespace(**fields, torch_dtype=torch.bfloat16)


def model(overrides: dict[str, Any]) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        made = step.Step3p5ForCausalLM(config(overrides), backend=mla.BACKEND)
    torch.set_default_dtype(torch.float32)
    return made


def registered() -> dict[str, Any]:
    made = model({})
    return {"parameters": [[n, list(p.shape)] for n, p in made.named_parameters()],
            "fp32": [n for n, p in made.named_parameters() if p.dtype == torch.float32],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in made.named_buffers()]}


def component_of(name: str) -> str:
    words = ("share_expert", "shared_experts"), ("experts", "routed_experts"), ("gate.", "router"), ("norm", "norms"), (
        "attn", "attention"), ("mlp", "mlp"), ("lm_head", "lm_head"), ("embed", "embedding")
    return next(part for word, part in words if word in name.replace("gate_proj", ""))


def counted(overrides: dict[str, Any]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, parameter in model(overrides).named_parameters():
        counts[component_of(name)] += parameter.numel()
    return dict(counts)


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake, made = Tracker(), FakeTensorMode(), config(case.get("overrides", {}))
    with fake:
        model_config = step.MoEConfig(
            dim=made.hidden_size, inter_dim=made.intermediate_size, moe_inter_dim=made.moe_intermediate_size,
            n_routed_experts=8, n_shared_experts=0, n_activated_experts=2, n_expert_groups=0, n_limited_groups=0,
            train_gate=True, gate_bias_update_factor=0.0, score_func="sigmoid_with_bias", route_scale=1.0,
            aux_loss_coeff=0.0, norm_topk_prob=True, router_bias=False, expert_bias=False, expert_activation="swiglu",
            dtype=torch.bfloat16)
        step.MoE = lambda *_: Dense(made.hidden_size, made.moe_intermediate_size, "torch", dtype=torch.bfloat16)
        torch.set_default_dtype(torch.bfloat16)  # as `local_torch_dtype` has it where models are made
        block = step.Block(case["layer"], made, model_config, mla.BACKEND)
        torch.set_default_dtype(torch.float32)
        block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch", rope_fusion=False)
        block.self_attn.attn_func = lambda q, k, v, **_: dense.Attention.apply(q, k, v)
    block.train()
    shape, seen = (case["batch"], case["seq"], made.hidden_size), []
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        table = torch.empty(*shape[:2], 8)
        positions = torch.empty(case["seq"], dtype=torch.int64).unsqueeze(0).expand(case["batch"], -1)
        for known in (*block.parameters(), *block.buffers(), table, positions):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x=x, freqs_cis=table, position_ids=positions)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


def stand_in() -> None:
    mla.stand_in()
    step_layers.apply_rotary_emb_qk = lambda q, k, table, **_: Rotated.apply(q, k, table)
    step.RotaryEmbedding = lambda **_: SimpleNamespace()  # the model's own table, which no layer reads


def published() -> dict[str, Any]:
    fields = json.loads((PRESETS / "step-3.5-flash.json").read_text(encoding="utf-8"))
    return {name: value for name, value in fields.items() if name not in ("model_type", "_name_or_path")}


if __name__ == "__main__":
    counts = {"step-3.5-flash": counted(published()), "small": counted({})}
    stand_in()
    known = registered()
    rows = {name: events(case) for name, case in CASES.items()}
    rows |= {f"drawn-{n:02}": events(drawn(SEED, n)) for n in range(COUNT)}
    print(json.dumps({"shape": SHAPE, "counts": counts, "registered": known})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
