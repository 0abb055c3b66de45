"""Measures Nemotron-H's multi-token prediction of nemo-automodel 0.7.0 event by event, with its losses.

    python tests/truth/probe_automodel_mtp.py > tests/truth/tape/automodel-mtp-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process: `MTPModule` of attention and experts behind the final norm's output, then for each
further token the head and `calculate_mtp_loss`. Stand-ins: flash attention, the norm of `probe_automodel_mla`, routed
experts of `probe_automodel_latent`. `peaks`: of a model of one layer, with the loss of the next token too.
`units`: what `parallelize_model` wraps. Registered: names and shapes of the modules with their own experts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import accumulate
from typing import Any

import probe_automodel_latent as latent
import probe_automodel_mla as mla
import torch
import torch.distributed as dist
from json_lines import by_name
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.loss.mtp import calculate_mtp_loss
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.nemotron_v3.model import NemotronHForCausalLM
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import NemotronHConfig

SHAPE = {"hidden_size": 256, "vocab_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
         "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "intermediate_size": 96,
         "moe_shared_expert_intermediate_size": 192, "moe_latent_size": 64}
SEQ = 192
CASES: dict[str, dict[str, Any]] = {
    "one": {"depths": 1}, "one checkpointed": {"depths": 1, "checkpoint": True}, "two": {"depths": 2},
    "two checkpointed": {"depths": 2, "checkpoint": True}, "one in 16 bits": {"depths": 1, "upcast": False},
    "one frozen": {"depths": 1, "frozen": True}, "two frozen": {"depths": 2, "frozen": True},
}
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)


class Flash(torch.autograd.Function):
    """[b, s, heads, d] in and out; keys and values have fewer heads."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, statistics = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _statistics = ctx.saved_tensors
        return tuple(torch.empty_like(x) for x in (q, k, v))


def model_of(case: dict[str, Any]) -> Any:
    fields = NemotronHConfig(**SHAPE, num_hidden_layers=1, layers_block_type=["attention"], n_group=1, topk_group=1,
                             n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True, mlp_bias=False,
                             mtp_layers_block_type=["attention", "moe"])
    fields.torch_dtype = torch.bfloat16
    return NemotronHForCausalLM(fields, backend=BACKEND, num_nextn_predict_layers=case["depths"],
                                mtp_use_repeated_layer=case["depths"] > 1)


def registered() -> list[Any]:
    with torch.device("meta"):
        made = model_of({"depths": 1}).mtp
    return [[n, list(p.shape)] for n, p in (*made.named_parameters(), *made.named_buffers())]


def stood_in(case: dict[str, Any]) -> Any:
    model = model_of(case)
    for block in (*model.model.layers.values(), *model.mtp.layers):
        if block.block_type == "attention":
            block.mixer.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch")
            block.mixer.attn_func = lambda q, k, v, **_: Flash.apply(q, k, v)
        else:
            block.mixer.experts = latent.Dense(SHAPE["moe_latent_size"], SHAPE["moe_intermediate_size"], "torch",
                                               dtype=torch.bfloat16, activation="relu2")
    model.requires_grad_(not case.get("frozen"))
    if case.get("checkpoint"):
        for place, block in enumerate(list(model.mtp.layers)):
            if case["depths"] == 1 or block.block_type == "attention":
                model.mtp.layers[place] = checkpoint_wrapper(block, preserve_rng_state=False)
    return model.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake, seen = Tracker(), FakeTensorMode(), []
    with fake:
        model = stood_in(case)
        ids, labels = (torch.zeros((1, SEQ), dtype=torch.long) for _ in range(2))
    loss_fn = MaskedCrossEntropy(fp32_upcast=case.get("upcast", True))
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, (1, SEQ, SHAPE["hidden_size"]), seen, tr.events)
        for known in (*model.parameters(), *model.buffers(), ids, labels):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        made = model.mtp(hidden_states=x, input_ids=ids, embed_fn=model.model.embed_tokens)
        loss = calculate_mtp_loss(loss_fn, mtp_per_depth_h=made, labels=labels, model=model, scaling_factor=0.1)
        held = [] if case.get("frozen") else [x.detach()]  # a head that is trained keeps it
        del made, x
        middle = len(tr.events)
        loss.backward()
        end = seen[0] - 1
        held.clear()
    found = [change for _, change in tr.events]
    return {"case": case, "forward": found[start:middle], "backward": found[middle:end]}


def peaks(case: dict[str, Any]) -> list[int]:
    """The most that forward and backward of the whole model add, with losses as `train_ft.py` computes them."""
    tr, fake = Tracker(), FakeTensorMode()
    with fake:
        model = stood_in(case)
        ids, labels = (torch.zeros((1, SEQ), dtype=torch.long) for _ in range(2))
    loss_fn = MaskedCrossEntropy(fp32_upcast=case.get("upcast", True))
    if case.get("frozen"):
        next(iter(model.model.layers.values())).requires_grad_(True)
    with fake, tr:
        for known in (*model.parameters(), *model.buffers(), ids, labels):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = model(input_ids=ids)
        loss = loss_fn(logits=out.logits, labels=labels)
        loss = loss + calculate_mtp_loss(loss_fn, mtp_per_depth_h=out.mtp_per_depth_h, labels=labels, model=model,
                                         scaling_factor=0.1)
        del out
        middle = len(tr.events)
        loss.backward()
    held = list(accumulate(change for _, change in tr.events[start:]))
    return [max(held[:middle - start]), max(held[middle - start:])]


def units(ep: int) -> list[Any]:
    """Name, parameters and resharding of the FSDP2 units of two tokens on 8 ranks of a fake process group."""
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    with torch.device("meta"):
        model = model_of({"depths": 2})
    experts = MoEParallelizerConfig(reshard_after_forward=True) if ep > 1 else None
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(ep_size=ep), world_size=8, moe_parallel_config=experts)
    model = parallelize_model(model, mesh)
    found = [(n, m._get_fsdp_state()._fsdp_param_group) for n, m in model.named_modules() if isinstance(m, FSDPModule)]
    dist.destroy_process_group()
    return [[n, sum(p._orig_size.numel() for p in group.fsdp_params), group.post_forward_mesh_info is not None]
            for n, group in found if group is not None]


if __name__ == "__main__":
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    mla.stand_in()
    torch.cuda.current_device = lambda: 0
    rows = {name: events(CASES[name]) for name in sys.argv[1:] or CASES}
    print(json.dumps({"shape": SHAPE, "seq": SEQ, "registered": registered(),
                      "peaks": {name: peaks(case) for name, case in CASES.items()},
                      "units": {str(ep): units(ep) for ep in (1, 4)}})[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
