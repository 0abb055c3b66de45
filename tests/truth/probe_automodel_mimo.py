"""Measures layers of nemo-automodel 0.7.0's MiMo-V2-Flash event by event; what the model registers, in two sizes.

    python tests/truth/probe_automodel_mimo.py > tests/truth/tape/automodel-mimo-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process, `attn: sdpa` and `rms_norm: torch_fp32`, with which its attention and norms are
torch's own operators and run as they are; routed experts are an MLP in their place. A layer is given the mask and the
tables that the model makes. `made`: sizes of what the model makes before its layers, in order. `drawn`: sizes by a seed
that was not used while the layers were written.
"""

from __future__ import annotations

import gc
import json
import random
from collections import Counter
from typing import Any

import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.mimo_v2_flash import model as mimo
from nemo_automodel.components.models.mimo_v2_flash.config import MiMoV2FlashConfig
from nemo_automodel.components.moe.layers import MLP
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

SHAPE: dict[str, Any] = {
    "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 48, "v_head_dim": 32, "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4, "swa_head_dim": 48, "swa_v_head_dim": 32, "sliding_window": 64,
    "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 0, 1, 1], "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48}
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch_mm", dispatcher="torch",
                        rope_fusion=False, enable_hf_state_dict_adapter=False)
CASES: dict[str, dict[str, Any]] = {
    **{f"layer {number}": {"layer": number, "batch": 2, "seq": 192} for number in range(4)},
    **{f"layer {number} checkpointed": {"layer": number, "batch": 1, "seq": 128, "checkpoint": True}
       for number in range(4)},
    **{f"layer {number} of as many heads": {"layer": number, "batch": 2, "seq": 96, "overrides": {
        "num_key_value_heads": 4, "swa_num_key_value_heads": 8}} for number in (0, 1)},
}
DRAWN = {"drawn": (48, 20261912), "drawn-again": (44, 7340211)}
"""Counts and seeds; again once single heads of keys were mended."""


class Dense(MLP):
    """An MLP that is called as experts are."""

    def forward(self, x: torch.Tensor, _mask: Any = None) -> torch.Tensor:
        return super().forward(x)


def drawn(seed: int, number: int) -> dict[str, Any]:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:mimo:{number}")
    groups = pick.choice((1, 2, 4))
    heads, dim, value = 2 * groups * pick.choice((1, 2, 3)), pick.choice((24, 48, 96)), pick.choice((16, 32, 64))
    overrides = {
        "hidden_size": pick.choice((128, 192, 320)), "intermediate_size": pick.choice((96, 344, 520)),
        "num_attention_heads": heads, "swa_num_attention_heads": heads, "num_key_value_heads": groups,
        "swa_num_key_value_heads": 2 * groups, "head_dim": dim, "swa_head_dim": dim, "v_head_dim": value,
        "swa_v_head_dim": value, "moe_intermediate_size": pick.choice((40, 96))}
    return {"layer": pick.randrange(4), "batch": pick.choice((1, 2, 3)), "seq": pick.choice((48, 96, 160, 256)),
            "overrides": overrides, **({"checkpoint": True} if pick.random() < 0.4 else {})}


def config(overrides: dict[str, Any]) -> MiMoV2FlashConfig:
    return MiMoV2FlashConfig(**SHAPE | overrides, torch_dtype="bfloat16")


def model(made: MiMoV2FlashConfig) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        found = mimo.MiMoV2FlashForCausalLM(made, backend=BACKEND)
    torch.set_default_dtype(torch.float32)
    return found


def registered() -> dict[str, Any]:
    made = model(config({}))
    return {"parameters": [[n, list(p.shape)] for n, p in made.named_parameters()],
            "fp32": [n for n, p in made.named_parameters() if p.dtype == torch.float32],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in made.named_buffers()]}


def component_of(name: str) -> str:
    words = ("experts", "routed_experts"), ("gate.", "router"), ("norm", "norms"), ("attn", "attention"), (
        "mlp", "mlp"), ("lm_head", "lm_head"), ("embed", "embedding")
    return next(part for word, part in words if word in name)


def counted(made: MiMoV2FlashConfig) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, parameter in model(made).named_parameters():
        counts[component_of(name)] += parameter.numel()
    return dict(counts)


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake, made = Tracker(), FakeTensorMode(), config(case.get("overrides", {}))
    with fake:
        mimo.MoE = Dense
        torch.set_default_dtype(torch.bfloat16)
        block = mimo.MiMoV2FlashBlock(case["layer"], made, None, BACKEND) if not made.moe_layer_freq[
            case["layer"]] else sparse(case["layer"], made)
        torch.set_default_dtype(torch.float32)
    block.train()
    shape, seen = (case["batch"], case["seq"], made.hidden_size), []
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        size = block.self_attn.rope_dim
        tables = tuple(torch.empty(*shape[:2], size, dtype=torch.bfloat16) for _ in range(2))
        mask = torch.empty(case["batch"], 1, case["seq"], case["seq"], dtype=torch.bfloat16)
        for known in (*block.parameters(), *block.buffers(), *tables, mask):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x, attention_mask=mask, position_embeddings=tables)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


def sparse(layer: int, made: MiMoV2FlashConfig) -> Any:
    """A block whose experts are an MLP."""
    mimo.MoE = lambda *_: Dense(made.hidden_size, made.moe_intermediate_size, "torch", dtype=torch.bfloat16)
    block = mimo.MiMoV2FlashBlock(layer, made, None, BACKEND)
    mimo.MoE = Dense
    return block


if __name__ == "__main__":
    counts = {"mimo-v2-flash": counted(MiMoV2FlashConfig(torch_dtype="bfloat16")), "small": counted(config({}))}
    known = registered()
    rows = {name: events(case) for name, case in CASES.items()}
    rows |= {f"{name}-{n:02}": events(drawn(seed, n)) for name, (count, seed) in DRAWN.items() for n in range(count)}
    print(json.dumps({"shape": SHAPE, "counts": counts, "registered": known})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
