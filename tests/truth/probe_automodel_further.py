"""Measures dense layers and gates of nemo-automodel 0.7.0's Mistral 4, event by event, and what the model registers.

    python tests/truth/probe_automodel_further.py > tests/truth/tape/automodel-further-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process, with the stand-ins of `probe_automodel_mla.py`: attention keeps what TE's does,
norms and the rotation make what CUDA's do. Layers are the model's first, which has an MLP; a gate is called by itself.
`wrapped`: what `parallelize_model` wraps of Mistral 4 behind its tower.
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any

import probe_automodel_mla as mla
import torch
import torch.distributed as dist
from json_lines import by_name
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.mistral4 import model as mistral4
from nemo_automodel.components.models.mistral4.configuration import Mistral4Config
from nemo_automodel.components.moe.layers import Gate
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Mistral3Config, PixtralVisionConfig

SHAPES: dict[str, dict[str, Any]] = {
    "mistral4": {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 2,
                 "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 80,
                 "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8,
                 "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 48,
                 "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
}
CASES: dict[str, dict[str, Any]] = {
    "mistral4": {"family": "mistral4", "batch": 2, "seq": 192},
    "mistral4 checkpointed": {"family": "mistral4", "batch": 1, "seq": 128, "checkpoint": True},
}
GATES: dict[str, dict[str, Any]] = {
    "mistral4": {"family": "mistral4"},
    "mistral4 not normalised": {"family": "mistral4", "overrides": {"norm_topk_prob": False}},
    "by sigmoid": {"family": "mistral4", "gate": {"score_func": "sigmoid"}, "product": "fp32"},
    "by sigmoid, not normalised": {"family": "mistral4", "overrides": {"norm_topk_prob": False},
                                   "gate": {"score_func": "sigmoid"}, "product": "fp32"},
    "by sigmoid of a product in bf16": {"family": "mistral4", "gate": {"score_func": "sigmoid",
                                                                       "router_weights_fp32": False}},
}
TOKENS = 192
TOWER = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
         "patch_size": 14, "image_size": 280}


def config(family: str, overrides: dict[str, Any]) -> Any:
    made = Mistral4Config(**SHAPES[family] | overrides)
    made.torch_dtype = torch.bfloat16
    return made


def registered(family: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = mistral4.Mistral4ForCausalLM(config(family, {}), backend=mla.BACKEND)
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def block_of(case: dict[str, Any]) -> Any:
    block = mistral4.Mistral4Block(0, config(case["family"], case.get("overrides", {})), None, mla.BACKEND)
    block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch")
    block.self_attn.attn_func = lambda q, k, v, **_: mla.Attention.apply(q, k, v.contiguous())
    return block.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    with fake:
        block = block_of(case)
    shape, seen = (case["batch"], case["seq"], SHAPES[case["family"]]["hidden_size"]), []
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        table = torch.empty(*shape[:2], SHAPES[case["family"]]["qk_rope_head_dim"] // 2, dtype=torch.complex64)
        positions = torch.arange(shape[1]).unsqueeze(0).expand(shape[0], -1)
        for known in (*block.parameters(), table, positions):
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


def gate_events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake, seen = Tracker(), FakeTensorMode(), []
    with fake:
        gate = Gate(mistral4._build_moe_config(config(case["family"], case.get("overrides", {})), case.get("gate")),
                    gate_precision=torch.float32 if "product" in case else None).train()
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, (TOKENS, gate.dim), seen, tr.events)
        mask = torch.ones(TOKENS, dtype=torch.bool)
        for known in (*gate.parameters(), *gate.buffers(), mask):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        weights, indices, _ = gate(x, mask, None)
        del indices, _
        middle = len(tr.events)
        loss = mla.Around.apply(weights, (), seen, tr.events)
        del weights
        loss.backward()
        del x
    changes = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": changes[start:middle], "backward": changes[after:before - 1]}


def wrapped(ep: int, *, outer: bool) -> list[Any]:
    """FSDP2 units of Mistral 4 behind its tower over 8 ranks, root first: name and elements."""
    text = config("mistral4", {})
    made = Mistral3Config(text_config=text, vision_config=PixtralVisionConfig(**TOWER))
    made.tie_word_embeddings, made.text_config, made.torch_dtype = False, text, torch.bfloat16
    with torch.device("meta"):
        model = mistral4.Mistral3ForConditionalGeneration(made, backend=mla.BACKEND)
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(ep_size=ep), world_size=8,
                             moe_parallel_config=MoEParallelizerConfig(wrap_outer_model=outer))
    found = []
    for name, module in parallelize_model(model, mesh).named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            found.append([name, sum(one.sharded_param.numel() for one in group.fsdp_params) if group else 0])
    return found


if __name__ == "__main__":
    mla.stand_in()
    known = {family: registered(family) for family in SHAPES}
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    torch.cuda.current_device = lambda: 0
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    units = {f"over {ep}": wrapped(ep, outer=outer) for ep, outer in ((4, True), (8, True))}
    dist.destroy_process_group()
    print(json.dumps({"shapes": SHAPES, "tower": TOWER, "registered": known, "wrapped": units})[:-1] + ', "gates": {')
    print(by_name({name: gate_events(case) for name, case in GATES.items()}, compact=True))
    print('}, "layers": {')
    print(by_name({name: events(case) for name, case in CASES.items()}, compact=True))
    print("}}")
