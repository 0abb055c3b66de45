"""Measures layers of nemo-automodel 0.7.0's Qwen 3.5 and Qwen3-Next event by event, and what its models register.

    python tests/truth/probe_automodel_delta.py > tests/truth/tape/automodel-delta-0.7.0-torch-2.13.0.json

Fake tensors on a CPU, one process. fla-core's own Python (0.6.0) runs over launches that do nothing, causal-conv1d is
the stand-in of `oracle/steps/delta.py`; attention keeps what TE's does (`probe_automodel_dense`) or is the CPU flash
kernel, and the compiled rotation of query and key makes two tensors. The layers are dense: those of the model with
experts differ in `shared`, the expert that all tokens share, weighed by a sigmoid.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any
from unittest import mock

from oracle.steps import delta

delta.put_in_place()

from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe  # noqa: E402

if "Qwen3_5MoeModelOutputWithPast" not in vars(modeling_qwen3_5_moe):  # transformers 5.18, which 0.7.0 pins, has it
    modeling_qwen3_5_moe.Qwen3_5MoeModelOutputWithPast = modeling_qwen3_5_moe.MoeModelOutputWithPast

import probe_automodel_dense as dense  # noqa: E402
import probe_automodel_mla as mla  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from json_lines import by_name  # noqa: E402
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules  # noqa: E402
from nemo_automodel.components.distributed import activation_checkpointing as ac  # noqa: E402
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig  # noqa: E402
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes  # noqa: E402
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model  # noqa: E402
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy  # noqa: E402
from nemo_automodel.components.loss.mtp import calculate_mtp_loss  # noqa: E402
from nemo_automodel.components.models.common import BackendConfig  # noqa: E402
from nemo_automodel.components.models.qwen3_5 import model as qwen3_5  # noqa: E402
from nemo_automodel.components.models.qwen3_5_moe import cp_linear_attn  # noqa: E402
from nemo_automodel.components.models.qwen3_5_moe import model as qwen3_5_moe  # noqa: E402
from nemo_automodel.components.models.qwen3_next import layers as next_layers  # noqa: E402
from nemo_automodel.components.models.qwen3_next import model as qwen3_next  # noqa: E402
from nemo_automodel.components.moe.layers import MLP, MoE  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig  # noqa: E402
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig  # noqa: E402
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig  # noqa: E402

COMMON = {"hidden_size": 256, "vocab_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
          "num_key_value_heads": 2, "head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
          "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64,
          "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "tie_word_embeddings": False,
          "mtp_num_hidden_layers": 0,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                              "mrope_section": [2, 1, 1]}}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": COMMON | {"intermediate_size": 640},
    "qwen3_5_moe_text": COMMON | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
                                  "shared_expert_intermediate_size": 80},
    "qwen3_next": COMMON | {"intermediate_size": 640, "num_experts": 8, "num_experts_per_tok": 2,
                            "moe_intermediate_size": 96, "shared_expert_intermediate_size": 80,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                "partial_rotary_factor": 0.25}},
}
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        rope_fusion=False, enable_hf_state_dict_adapter=False)
ONE_EACH = {"linear_num_key_heads": 8}
CASES: dict[str, dict[str, Any]] = {
    "delta": {"layer": 0, "batch": 2, "seq": 192}, "delta, masked": {"layer": 0, "batch": 2, "seq": 192, "mask": True},
    "delta, a key head each": {"layer": 0, "batch": 1, "seq": 192, "fields": ONE_EACH},
    "delta, in parts": {"layer": 0, "batch": 1, "seq": 192, "checkpoint": "parts"},
    "delta, whole": {"layer": 0, "batch": 1, "seq": 192, "checkpoint": "whole"},
    "attention": {"layer": 1, "batch": 2, "seq": 192},
    "attention by te": {"layer": 1, "batch": 2, "seq": 192, "te": True},
    "attention, masked": {"layer": 1, "batch": 2, "seq": 192, "mask": True},
    "attention, in parts": {"layer": 1, "batch": 1, "seq": 192, "checkpoint": "parts"},
    "attention, whole": {"layer": 1, "batch": 1, "seq": 192, "checkpoint": "whole", "te": True},
    "shared": {"shared": True, "batch": 2, "seq": 192},
    "further": {"further": True, "batch": 1, "seq": 192},
    "further, checkpointed": {"further": True, "batch": 1, "seq": 192, "checkpoint": "whole"},
    "next, delta": {"next": True, "layer": 0, "batch": 2, "seq": 192},
    "next, delta, a key head each": {"next": True, "layer": 0, "batch": 1, "seq": 192, "fields": ONE_EACH},
    "next, delta, whole": {"next": True, "layer": 0, "batch": 1, "seq": 192, "checkpoint": "whole"},
    "next, attention": {"next": True, "layer": 1, "batch": 2, "seq": 192},
    "next, attention by te": {"next": True, "layer": 1, "batch": 2, "seq": 192, "te": True},
    "next, attention, whole": {"next": True, "layer": 1, "batch": 1, "seq": 192, "checkpoint": "whole", "te": True},
}


def config(family: str, fields: dict[str, Any]) -> Any:
    made = {"qwen3_5_text": Qwen3_5TextConfig, "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
            "qwen3_next": Qwen3NextConfig}[family](**SHAPES[family] | fields)
    made.torch_dtype = torch.bfloat16
    made.num_experts = getattr(made, "num_experts", 0) or 0
    made.mlp_only_layers = fields.get("mlp_only_layers", [])
    return made


def registered(family: str) -> dict[str, Any]:
    made = {"qwen3_5_text": qwen3_5.Qwen3_5ForCausalLM, "qwen3_5_moe_text": qwen3_5_moe.Qwen3_5MoeForCausalLM,
            "qwen3_next": qwen3_next.Qwen3NextForCausalLM}[family]
    with torch.device("meta"):
        model = made(config(family, {}), backend=BACKEND)
    qwen3_5.cast_model_to_dtype(model, torch.bfloat16, skip_modules=("_fp32_params",))
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "fp32": [n for n, p in model.named_parameters() if p.dtype == torch.float32],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def seeing(fields: dict[str, Any]) -> Any:
    """The model that reads images, on the meta device; with experts if its `model_type` says so."""
    sparse = fields["model_type"] == "qwen3_5_moe"
    inside = {name: {k: v for k, v in fields[name].items() if k != "model_type"} for name in (
        "text_config", "vision_config")}
    made = (Qwen3_5MoeConfig if sparse else Qwen3_5Config)(
        **{**fields, **inside}, attn_implementation="sdpa", image_token_id=500, video_token_id=501)
    made.text_config.torch_dtype = torch.bfloat16
    made.text_config.mlp_only_layers = []
    if not sparse:
        made.text_config.num_experts = 0
    with torch.device("meta"):
        model = (qwen3_5_moe.Qwen3_5MoeForConditionalGeneration if sparse else
                 qwen3_5.Qwen3_5ForConditionalGeneration)(made, backend=BACKEND)
    qwen3_5.cast_model_to_dtype(model, torch.bfloat16, skip_modules=("_fp32_params",))
    return model


class Rotated(torch.autograd.Function):
    """The compiled rotation of query and key into tensors of their own, which keeps its table."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(table)
        return q.new_empty(q.shape), k.new_empty(k.shape)

    @staticmethod
    def backward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return q.new_empty(q.shape), k.new_empty(k.shape), None


class Zeros(torch.autograd.Function):
    """Routed experts that make a tensor alone, and a gradient of none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def shared_of(case: dict[str, Any]) -> Any:
    """`MoE.forward` without its router and its routed experts."""
    with torch.device("meta"):
        found = qwen3_5_moe.Qwen3_5MoeForCausalLM(config("qwen3_5_moe_text", {}), backend=BACKEND).model.moe_config
    block = MoE(found, BACKEND)
    del block.gate
    block.gate = lambda *_: (None, None, None)
    del block.experts
    block.experts = lambda x, *_: Zeros.apply(x)
    return block.train()


class Predicting(torch.nn.Module):
    """The module of multi-token prediction with experts that make nothing, over embeddings moved by one."""

    def __init__(self, checkpoint: bool) -> None:
        super().__init__()
        model = qwen3_5_moe.Qwen3_5MoeForCausalLM(config("qwen3_5_moe_text", {"mtp_num_hidden_layers": 1}),
                                                  backend=BACKEND)
        self.mtp, self.lm_head, self.rotary = model.mtp, model.lm_head, model.model.rotary_emb
        for layer in self.mtp.layers:
            del layer.mlp.gate, layer.mlp.experts
            layer.mlp.gate = lambda *_: (None, None, None)
            layer.mlp.experts = lambda x, *_: Zeros.apply(x)
        if checkpoint:
            self.mtp.layers[0] = checkpoint_wrapper(self.mtp.layers[0])

    def forward(self, x: torch.Tensor, embeds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.zeros((3, *labels.shape), dtype=torch.int64)
        made = self.mtp(x, embed_inputs=qwen3_5_moe._rolled_embed_inputs(embeds, 1), position_ids=places,
                        attention_mask=None, padding_mask=None, rotary_emb=self.rotary)
        return calculate_mtp_loss(MaskedCrossEntropy(), mtp_per_depth_h=made, labels=labels, model=self,
                                  scaling_factor=0.1)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.lm_head


def further(case: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward of such a module, its head and its loss; a trained head keeps the final hidden state."""
    tr, fake = Tracker(), FakeTensorMode(allow_non_fake_inputs=True)
    torch.set_default_dtype(torch.bfloat16)
    with fake:
        module = Predicting(bool(case.get("checkpoint"))).train()
    torch.set_default_dtype(torch.float32)
    seen: list[int] = []
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        shape = (case["batch"], case["seq"], COMMON["hidden_size"])
        x, embeds = (mla.Around.apply(leaf, shape, seen, tr.events) for _ in range(2))
        labels = torch.zeros(shape[:2], dtype=torch.int64)
        for known in (*module.parameters(), *module.buffers(), labels):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        loss = module(x, embeds, labels)
        middle = len(tr.events)
        loss.backward()
    found = [change for _, change in tr.events]
    return {"case": case, "forward": found[start:middle], "backward": found[middle:max(seen) - 1]}


def block_of(case: dict[str, Any]) -> Any:
    """A layer with an MLP; of Qwen3-Next too, whose configuration lists such layers."""
    if case.get("next"):
        made = config("qwen3_next", {"mlp_only_layers": [0, 1]} | case.get("fields", {}))
        block = qwen3_next.Block(case["layer"], made, None, BACKEND)
    else:
        made = config("qwen3_5_text", case.get("fields", {}))
        block = qwen3_5.Qwen3_5DenseBlock(case["layer"], made, qwen3_5._dense_moe_config(made, torch.bfloat16), BACKEND)
    assert isinstance(block.mlp, MLP)
    if case.get("te"):
        block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch", rope_fusion=False)
        block.self_attn.attn_func = lambda q, k, v, **_: dense.Attention.apply(q, k, v)
    if case.get("checkpoint") == "parts":
        ac.apply_submodule_checkpointing([block], False)
    return checkpoint_wrapper(block) if case.get("checkpoint") == "whole" else block.train()


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode(allow_non_fake_inputs=True)
    torch.set_default_dtype(torch.bfloat16)
    with fake:
        block = shared_of(case) if case.get("shared") else block_of(case)
    torch.set_default_dtype(torch.float32)
    shape, seen = (case["batch"], case["seq"], COMMON["hidden_size"]), []
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = mla.Around.apply(leaf, shape, seen, tr.events)
        table = torch.empty(*shape[:2], 8, dtype=torch.bfloat16)
        mask = torch.ones(shape[:2], dtype=torch.int64) if case.get("mask") else None
        padding = torch.zeros(shape[:2], dtype=torch.bool)
        for known in (*block.parameters(), table, padding, *([] if mask is None else [mask])):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = block(x, padding) if case.get("shared") else block(
            x, freqs_cis=table, attention_mask=mask, padding_mask=None if mask is None else padding)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


VISION = {"model_type": "qwen3_5_moe", "depth": 2, "hidden_size": 160, "intermediate_size": 264, "num_heads": 4,
          "out_hidden_size": 256, "num_position_embeddings": 64, "patch_size": 16, "spatial_merge_size": 2,
          "temporal_patch_size": 2, "hidden_act": "gelu_pytorch_tanh"}
WRAPPED: dict[str, dict[str, Any]] = {"over 4": {"ep": 4}, "over 8": {"ep": 8}, "over 8, checkpointed": {
    "ep": 8, "checkpoint": True}, "next, over 4": {"ep": 4, "next": True},
    "predicting, over 4": {"ep": 4, "mtp": 1}, "predicting, over 8": {"ep": 8, "mtp": 1},
    "next, over 8, checkpointed": {"ep": 8, "next": True, "checkpoint": True},
    "text alone, over 4": {"ep": 4, "text": True}, "text alone, over 8, checkpointed": {
        "ep": 8, "text": True, "checkpoint": True, "mtp": 1},
    "text alone, adapted, over 8": {"ep": 8, "text": True, "lora": 8, "target_modules": ["*"]},
    "text alone, adapted outside, over 8": {"ep": 8, "text": True, "lora": 8, "exclude_modules": ["*visual*"]}}


def sparse_next() -> Any:
    with torch.device("meta"):
        model = qwen3_next.Qwen3NextForCausalLM(config("qwen3_next", {}), backend=BACKEND)
    qwen3_5.cast_model_to_dtype(model, torch.bfloat16, skip_modules=("_fp32_params",))
    return model


def calls_of_tower(model: Any) -> int:
    """Number of times that the tower runs if the model is given tokens alone; its decoder is left out."""
    made: list[Any] = []
    with model.model.visual.register_forward_pre_hook(lambda *_: made.append(1)):
        hidden = torch.zeros(1, 4, COMMON["hidden_size"], dtype=torch.bfloat16, device="meta")
        with mock.patch.object(model.model.language_model, "forward", return_value=BaseModelOutput(hidden)):
            model.eval()(input_ids=torch.zeros(1, 4, dtype=torch.int64))
    model.train()
    return len(made)


def wrapped(case: dict[str, Any]) -> dict[str, Any]:
    """FSDP2 units of a model with experts, root first: name and elements; what is checkpointed.

    Qwen 3.5 has a frozen tower, but where it is given text alone: `calls` counts how often the tower then runs.
    """
    model = sparse_next() if case.get("next") else seeing({
        "model_type": "qwen3_5_moe", "tie_word_embeddings": False, "vision_config": VISION,
        "text_config": SHAPES["qwen3_5_moe_text"] | {"mtp_num_hidden_layers": case.get("mtp", 0)}})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("visual" not in name or case.get("text", False))
    calls = {"calls": calls_of_tower(model)} if case.get("text") else {}
    if "lora" in case:
        apply_lora_to_linear_modules(model, PeftConfig(dim=case["lora"], alpha=32, **{
            name: case.get(name, []) for name in ("target_modules", "exclude_modules")}))
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(ep_size=case["ep"]), world_size=8,
                             moe_parallel_config=MoEParallelizerConfig(), activation_checkpointing=bool(
                                 case.get("checkpoint")))
    model = parallelize_model(model, mesh)
    units = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            units.append([name.replace("_checkpoint_wrapped_module.", "").removesuffix("._checkpoint_wrapped_module"),
                          sum(one.sharded_param.numel() for one in group.fsdp_params) if group else 0])
    return {"case": case, "units": units, **calls, "checkpoints": [
        name.removesuffix("._checkpoint_wrapped_module") for name, _ in model.named_modules()
        if name.endswith("._checkpoint_wrapped_module")]}


def stand_in() -> None:
    dense.stand_in()
    for name in [name for name in sys.modules if name.startswith("fla.")]:
        if "check_shared_mem" in vars(sys.modules[name]):
            sys.modules[name].check_shared_mem = lambda *_: True  # that of an H100
    torch.cuda.current_device = lambda: 0
    next_layers.apply_rotary_emb_qk = lambda q, k, table, **_: Rotated.apply(q, k, table)
    qwen3_5.prepare_gated_delta_packed_metadata = lambda *_, **__: None  # it reads the mask's values
    cp_linear_attn.is_indexed_packed_mask = lambda *_: False
    torch.Tensor.item = lambda self: True  # whether no token is padding


if __name__ == "__main__":
    stand_in()
    known = {family: registered(family) for family in SHAPES}
    rows = {name: further(case) if case.get("further") else events(case) for name, case in CASES.items()}
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    units = {name: wrapped(case) for name, case in WRAPPED.items()}
    head = {"shapes": SHAPES, "vision": VISION, "registered": known, "wrapped": units}
    print(json.dumps(head)[:-1] + ', "layers": {')
    print(by_name(rows, compact=True))
    print("}}")
