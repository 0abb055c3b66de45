"""Measures layers of nemo-automodel 0.7.0's GLM-4.5, GLM-4.7-Flash, Ling 2.0, MiniMax-M2; what the models register.

    python tests/truth/probe_automodel_sparse.py > tests/truth/tape/automodel-sparse-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process, with the stand-ins of `probe_automodel_mla.py` and `probe_automodel_dense.py`:
attention keeps what TE's does, the compiled rotation of query and key makes two tensors, norms make what CUDA's do. The
layers are dense: the first ones, and MiniMax-M2's with an MLP in the place of its experts. `wrapped`: what
`parallelize_model` wraps of MiniMax-M2, whose gate is in fp32.
"""

from __future__ import annotations

import gc
import json
import os
from types import SimpleNamespace
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_mla as mla
import torch
import torch.distributed as dist
from json_lines import by_name
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.glm4_moe import layers as glm_layers
from nemo_automodel.components.models.glm4_moe import model as glm
from nemo_automodel.components.models.glm4_moe_lite import model as lite
from nemo_automodel.components.models.hy_v3 import layers as hy_layers
from nemo_automodel.components.models.hy_v3 import model as hy
from nemo_automodel.components.models.hy_v3.config import HYV3Config
from nemo_automodel.components.models.ling_v2 import layers as ling_layers
from nemo_automodel.components.models.ling_v2 import model as ling
from nemo_automodel.components.models.ling_v2.config import BailingMoeV2Config
from nemo_automodel.components.models.minimax_m2 import layers as minimax_layers
from nemo_automodel.components.models.minimax_m2 import model as minimax
from nemo_automodel.components.moe.layers import MLP
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.glm4_moe.configuration_glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe_lite.configuration_glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.minimax_m2.configuration_minimax_m2 import MiniMaxM2Config

COMMON = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 2,
          "num_attention_heads": 8, "moe_intermediate_size": 48, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
GROUPED = {"num_key_value_heads": 2, "head_dim": 32, "partial_rotary_factor": 0.5}
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "glm4_moe": COMMON | GROUPED | ROUTED | {"attention_bias": True, "use_qk_norm": True},
    "glm4_moe_lite": COMMON | ROUTED | {
        "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 80, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 24},
    "bailing_moe": COMMON | GROUPED | {"num_experts": 8, "num_shared_experts": 1, "n_group": 2, "topk_group": 1,
                                       "use_qk_norm": True},
    "hy_v3": COMMON | {"num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_shared_experts": 1,
                       "route_norm": True},
    "minimax_m2": {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 2,
                   "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rotary_dim": 16,
                   "num_local_experts": 8, "num_experts_per_tok": 2, "use_qk_norm": True},
}
CONFIGS: dict[str, Any] = {"glm4_moe": Glm4MoeConfig, "glm4_moe_lite": Glm4MoeLiteConfig,
                           "bailing_moe": BailingMoeV2Config, "hy_v3": HYV3Config, "minimax_m2": MiniMaxM2Config}
MODELS: dict[str, Any] = {"glm4_moe": glm.Glm4MoeForCausalLM, "glm4_moe_lite": lite.Glm4MoeLiteForCausalLM,
                          "bailing_moe": ling.BailingMoeV2ForCausalLM, "hy_v3": hy.HYV3ForCausalLM,
                          "minimax_m2": minimax.MiniMaxM2ForCausalLM}
BLOCKS: dict[str, Any] = {"glm4_moe": glm.Block, "glm4_moe_lite": lite.Block, "bailing_moe": ling.Block,
                          "hy_v3": hy.Block, "minimax_m2": minimax.Block}
CASES: dict[str, dict[str, Any]] = {
    **{family: {"family": family, "batch": 2, "seq": 192} for family in SHAPES},
    "glm4_moe checkpointed": {"family": "glm4_moe", "batch": 1, "seq": 128, "checkpoint": True},
    "glm4_moe without norms of heads": {"family": "glm4_moe", "batch": 2, "seq": 128,
                                        "overrides": {"use_qk_norm": False}},
    "glm4_moe_lite checkpointed": {"family": "glm4_moe_lite", "batch": 1, "seq": 128, "checkpoint": True},
    "bailing_moe checkpointed": {"family": "bailing_moe", "batch": 1, "seq": 128, "checkpoint": True},
    "minimax_m2 checkpointed": {"family": "minimax_m2", "batch": 1, "seq": 128, "checkpoint": True},
}


class Dense(MLP):
    """An MLP that is called as experts are."""

    def forward(self, x: torch.Tensor, _mask: Any = None) -> torch.Tensor:
        return super().forward(x)


def config(family: str, overrides: dict[str, Any]) -> Any:
    made = CONFIGS[family](**SHAPES[family] | overrides)
    made.torch_dtype = torch.bfloat16
    return made


def registered(family: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = MODELS[family](config(family, {}), backend=mla.BACKEND)
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "fp32": [n for n, p in model.named_parameters() if p.dtype == torch.float32],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def block_of(case: dict[str, Any]) -> Any:
    family = case["family"]
    made = config(family, case.get("overrides", {}))
    if family == "minimax_m2":
        minimax.MoE = lambda *_: Dense(made.hidden_size, made.intermediate_size, "torch", dtype=torch.bfloat16)
    block = BLOCKS[family](0, made, None, mla.BACKEND)
    block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch", rope_fusion=False)
    latent = family == "glm4_moe_lite"
    block.self_attn.attn_func = lambda q, k, v, **_: (
        mla.Attention.apply(q, k, v.contiguous()) if latent else dense.Attention.apply(q, k, v))
    return block.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    with fake:
        block = block_of(case)
    shape, seen = (case["batch"], case["seq"], COMMON["hidden_size"]), []
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        table = torch.empty(*shape[:2], 8, dtype=torch.complex64)
        for known in (*block.parameters(), table):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x=x, freqs_cis=table)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


def wrapped(ep: int) -> list[Any]:
    """FSDP2 units of MiniMax-M2 over 8 ranks, root first: name and elements."""
    with torch.device("meta"):
        model = MODELS["minimax_m2"](config("minimax_m2", {}), backend=mla.BACKEND)
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(ep_size=ep), world_size=8,
                             moe_parallel_config=MoEParallelizerConfig())
    found = []
    for name, module in parallelize_model(model, mesh).named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            found.append([name, sum(one.sharded_param.numel() for one in group.fsdp_params) if group else 0])
    return found


def stand_in() -> None:
    mla.stand_in()
    torch.cuda.current_device = lambda: 0  # GLM names the device of its tables
    for module in (glm_layers, hy_layers, ling_layers, minimax_layers):
        module.apply_rotary_emb_qk = lambda q, k, _table, **_: dense.Rotated.apply(q, k)
    for module in (glm, hy, ling, minimax):  # the tables themselves are not built
        module.RotaryEmbedding = lambda **_: SimpleNamespace()


if __name__ == "__main__":
    stand_in()
    known = {family: registered(family) for family in SHAPES}
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    units = {f"over {ep}": wrapped(ep) for ep in (4, 8)}
    dist.destroy_process_group()
    rows = {name: events(case) for name, case in CASES.items()}  # without MiniMax-M2's experts
    print(json.dumps({"shapes": SHAPES, "registered": known, "wrapped": units})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
