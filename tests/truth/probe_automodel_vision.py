"""Measures whole steps of small models with a frozen vision tower that nemo-automodel 0.7.0 wraps.

    python tests/truth/probe_automodel_vision.py > tests/truth/tape/automodel-vision-0.7.0-torch-2.13.0.json

As `probe_automodel_step.py`, with Automodel's own `apply_parameter_freezing` by a recipe's `freeze_config`, and the
model's output held until backward is over, as `recipes/vlm/finetune.py` holds it. Fake tensors have no values:
stand-ins are those of `image_stand_ins.py`. `units`: names of wrapped modules, each with the elements that its group
of parameters holds in all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import image_stand_ins as stand
import probe_automodel_delta as own
import probe_automodel_dense as dense
import probe_automodel_step as steps
import sees
import torch
import torch.distributed as dist
from nemo_automodel.components.distributed import cp_vision_frame_shard
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.loss.mtp import calculate_mtp_loss
from nemo_automodel.components.models.gemma4_moe.sdpa_fp32 import enable_gemma4_sdpa_fp32
from nemo_automodel.components.models.qwen3_vl import model as packed_vl
from nemo_automodel.components.models.qwen3_vl_moe import model as sparse_vl
from nemo_automodel.components.utils.model_utils import apply_parameter_freezing
from oracle.drawn_automodel import adapted
from oracle.steps.setup import tag_shards
from oracle.steps.tracker import Tracker
from sees import FAMILIES
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3VLConfig, Qwen3VLMoeConfig, masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HERE = Path(__file__).resolve().parent
MODELS: dict[str, Any] = {one["name"]: one for one in json.loads(
    (HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))}
WIDE = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
"""Precision of NeMo RL's workers, whose parameters rest in fp32 and whose forward is under autocast."""
FROZEN = {"freeze_vision_tower": True, "freeze_language_model": False}
SILENT = {**FROZEN, "freeze_audio_tower": True}
TRAINED = {"freeze_vision_tower": False, "freeze_language_model": False}
SPARSE: dict[str, Any] = {
    **MODELS["qwen3-vl"]["fields"], "model_type": "qwen3_vl_moe", "tie_word_embeddings": False,
    "text_config": {**MODELS["qwen3-vl"]["fields"]["text_config"], "model_type": "qwen3_vl_moe_text", "num_experts": 8,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "mlp_only_layers": [0, 1, 2],
                    "tie_word_embeddings": False},
    "vision_config": {**MODELS["qwen3-vl"]["fields"]["vision_config"], "model_type": "qwen3_vl_moe"}}
"""Qwen 3 VL in the class of the model with experts, none of which has a layer: they run on a GPU alone."""
ROUTED: dict[str, Any] = {**SPARSE, "text_config": {**SPARSE["text_config"], "mlp_only_layers": []}}
"""The same with its experts: such a model is wrapped alone."""
CASES: dict[str, dict[str, Any]] = {
    "gemma3": {"freeze": FROZEN, "images": 1}, "gemma3, four images": {"freeze": FROZEN, "images": 4},
    "gemma3, large images": {"freeze": FROZEN, "images": 4, "seq": 128, "image_size": 448},
    "gemma3, text frozen": {"freeze": {**FROZEN, "freeze_language_model": True}, "images": 1},
    "gemma3, adapted": {"freeze": FROZEN, "images": 1, "lora": 8, "exclude_modules": ["*vision*", "*lm_head*"]},
    "gemma3, checkpointed": {"freeze": FROZEN, "images": 1, "checkpoint": True},
    "gemma4": {"freeze": FROZEN, "images": 1, "model": "gemma4-vision"},
    "gemma4, two images": {"freeze": FROZEN, "images": 2, "sides": [96, 96], "model": "gemma4-vision"},
    "gemma4, checkpointed": {"freeze": FROZEN, "images": 1, "model": "gemma4-vision", "checkpoint": True},
    "gemma4, adapted": {"freeze": FROZEN, "images": 1, "lora": 8, "exclude_modules": ["*vision*", "*lm_head*"],
                        "model": "gemma4-vision"},
    "gemma4, adapted, SDPA in fp32": {"freeze": FROZEN, "images": 1, "lora": 8, "attention": "sdpa", "checkpoint": True,
                                     "exclude_modules": ["*vision*", "*lm_head*"], "model": "gemma4-vision"},
    "gemma4, inputs of layers": {"freeze": SILENT, "images": 1, "model": "gemma4-per-layer"},
    "gemma4, inputs of layers, adapted": {"freeze": SILENT, "images": 1, "lora": 8, "model": "gemma4-per-layer",
                                          "exclude_modules": ["*vision*", "*lm_head*", "*audio*"]},
    "gemma4, inputs of layers, adapted, SDPA in fp32": {
        "freeze": SILENT, "images": 1, "lora": 8, "attention": "sdpa", "model": "gemma4-wide-heads",
        "exclude_modules": ["*vision*", "*lm_head*", "*audio*"]},
    "gemma4, wide inputs of layers": {"freeze": SILENT, "images": 1, "seq": 64, "model": "gemma4-wide-inputs"},
    "gemma4, wide inputs of layers, adapted": {
        "freeze": SILENT, "images": 1, "lora": 8, "seq": 64, "model": "gemma4-wide-inputs",
        "exclude_modules": ["*vision*", "*lm_head*", "*audio*"]},
    "qwen2.5-vl": {"freeze": FROZEN, "images": 1, "model": "qwen2.5-vl"},
    "qwen2.5-vl, a large image": {"freeze": FROZEN, "images": 1, "sides": [588, 672], "model": "qwen2.5-vl"},
    "qwen2.5-vl, adapted": {"freeze": FROZEN, "images": 2, "lora": 8, "exclude_modules": ["*visual*", "*lm_head*"],
                            "model": "qwen2.5-vl"},
    "qwen2.5-vl, policy": {"freeze": TRAINED, "images": 1, "model": "qwen2.5-vl", "policy": True},
    "qwen2.5-vl, policy, a large image": {
        "freeze": TRAINED, "images": 1, "sides": [588, 672], "model": "qwen2.5-vl", "policy": True},
    "qwen3-vl": {"freeze": FROZEN, "images": 1, "model": "qwen3-vl"},
    "qwen3-vl, a large image": {"freeze": FROZEN, "images": 1, "sides": [672, 736], "model": "qwen3-vl"},
    "qwen3-vl, packs": {"freeze": FROZEN, "images": 2, "model": "qwen3-vl", "packed": [180, 332]},
    "qwen3-vl, packs of large images": {
        "freeze": FROZEN, "images": 2, "sides": [320, 480], "model": "qwen3-vl", "packed": [200, 312]},
    "qwen3-vl-moe": {"freeze": FROZEN, "images": 1, "model": "qwen3-vl", "fields": SPARSE, "ep": 8},
    "qwen3-vl-moe, two images": {"freeze": FROZEN, "images": 2, "model": "qwen3-vl", "fields": SPARSE, "ep": 8},
    "qwen3-vl-moe, a large image": {
        "freeze": FROZEN, "images": 1, "sides": [672, 736], "model": "qwen3-vl", "fields": SPARSE, "ep": 8},
    "qwen3-vl-moe, checkpointed": {
        "freeze": FROZEN, "images": 1, "model": "qwen3-vl", "fields": SPARSE, "ep": 8, "checkpoint": True},
    "qwen3-vl-moe, experts over 4": {
        "freeze": FROZEN, "images": 1, "model": "qwen3-vl", "fields": ROUTED, "ep": 4, "placed": True},
    "qwen3-vl-moe, experts over 8": {
        "freeze": FROZEN, "images": 1, "model": "qwen3-vl", "fields": ROUTED, "ep": 8, "placed": True},
    "qwen3.5": {"freeze": FROZEN, "images": 1, "model": "qwen3.5"},
    "qwen3.5, a large image": {"freeze": FROZEN, "images": 1, "sides": [672, 736], "model": "qwen3.5"},
    "qwen3.5, checkpointed": {"freeze": FROZEN, "images": 2, "model": "qwen3.5", "checkpoint": True},
    "qwen3.5, adapted": {"freeze": FROZEN, "images": 1, "lora": 8, "exclude_modules": ["*visual*", "*lm_head*"],
                         "model": "qwen3.5"},
    "qwen3.5, predicting": {"freeze": FROZEN, "images": 1, "model": "qwen3.5", "mtp": 1},
    "qwen3.5, predicting, checkpointed": {"freeze": FROZEN, "images": 2, "model": "qwen3.5", "mtp": 1,
                                          "checkpoint": True},
    "qwen3.5, predicting, adapted": {"freeze": FROZEN, "images": 1, "lora": 8, "model": "qwen3.5", "mtp": 1,
                                     "exclude_modules": ["*visual*", "*lm_head*"]},
    "qwen3.5, predicting, adapted, checkpointed": {
        "freeze": FROZEN, "images": 1, "lora": 8, "model": "qwen3.5", "mtp": 1, "checkpoint": True,
        "exclude_modules": ["*visual*", "*lm_head*"]},
    "qwen3.5, trained": {"freeze": TRAINED, "images": 1, "model": "qwen3.5"},
    "qwen3.5, trained, a large image": {"freeze": TRAINED, "images": 1, "sides": [672, 736], "model": "qwen3.5"},
    "qwen2.5-vl, trained": {"freeze": TRAINED, "images": 1, "model": "qwen2.5-vl"},
    "qwen2.5-vl, trained, a large image": {
        "freeze": TRAINED, "images": 1, "sides": [588, 672], "model": "qwen2.5-vl"},
    "mistral3": {"freeze": FROZEN, "images": 1, "model": "mistral3"},
    "mistral3, a large image": {"freeze": FROZEN, "images": 1, "sides": [588, 672], "model": "mistral3"},
    "mistral3, text frozen": {"freeze": {**FROZEN, "freeze_language_model": True}, "images": 2, "model": "mistral3"},
    "mistral3, adapted": {"freeze": FROZEN, "images": 2, "lora": 8, "model": "mistral3",
                          "exclude_modules": ["*vision*", "*projector*", "*lm_head*"]},
    "mistral3, text alone": {"freeze": TRAINED, "images": 0, "model": "mistral3", "attention": "sdpa"},
    "mistral3, text alone, adapted": {
        "freeze": TRAINED, "images": 0, "lora": 8, "model": "mistral3", "attention": "sdpa", "exclude_modules": [
            "*vision*", "*projector*", "*lm_head*"]},
    "mistral3, text alone, adapted throughout": {
        "freeze": TRAINED, "images": 0, "lora": 8, "model": "mistral3", "attention": "sdpa", "exclude_modules": [
            "*lm_head*"]},
}
CAST = ("gemma3", "gemma4", "mistral3", "qwen3_5", "qwen3_vl", "qwen3_vl_moe")
"""Families whose images are 16 bits wide behind Automodel's collate_fns.py: not that of Qwen 2.5 VL."""


PLACES = ("image_position_ids", "mm_token_type_ids")
"""What Gemma 4 is given besides: places of patches, and which tokens are an image's."""


def whole(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its model's configuration; `image_size` of a case is that of its tower."""
    model = MODELS[case.get("model", "gemma3-vision")]
    vision = model["fields"]["vision_config"] | {k: case[k] for k in ("image_size",) if k in case}
    fields = case.get("fields") or model["fields"] | {"vision_config": vision}
    if "mtp" in case:
        fields["text_config"] = fields["text_config"] | {"mtp_num_hidden_layers": case["mtp"], "layer_types": [
            "linear_attention", "linear_attention", "full_attention"]}
    return {**model, "batch": 1, "seq": case.get("seq", 512), **case, "fields": fields}


def built(case: dict[str, Any]) -> Any:
    """The model on the meta device; Qwen 3.5's decoder is Automodel's own, with a decay in fp32."""
    if case["fields"]["model_type"] == "qwen3_5":
        return own.seeing(case["fields"])
    if "packed" in case:
        return packing(case)
    if case["fields"]["model_type"] == "qwen3_vl_moe":
        return sparse(case)
    with torch.device("meta"):
        return FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16)


def sparse(case: dict[str, Any]) -> Any:
    """Automodel's own class of Qwen 3 VL with experts."""
    config = Qwen3VLMoeConfig(**sees._fields({"attention": "sdpa", **case}), image_token_id=500, video_token_id=501)
    config.text_config.torch_dtype = torch.bfloat16
    with torch.device("meta"):
        model = sparse_vl.Qwen3VLMoeForConditionalGeneration(config, backend=own.BACKEND)
    torch.nn.RMSNorm.forward = lambda self, x: stand.Normed.apply(x, self.weight)  # type: ignore[method-assign]
    return model.to(torch.bfloat16)


def packing(case: dict[str, Any]) -> Any:
    """Automodel's own class of Qwen 3 VL, which takes packs; flash-attn, which is not installed, by a stand-in."""
    with torch.device("meta"):
        fields = sees._fields({"attention": "sdpa", **case})
        model = packed_vl.Qwen3VLForConditionalGeneration(Qwen3VLConfig(
            **fields, image_token_id=500, video_token_id=501)).to(torch.bfloat16)
    for config in (model.config, model.config.text_config, model.config.vision_config):
        config._attn_implementation = "flash_attention_2"
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = stand.varlen
    packed_vl.Qwen3VLForConditionalGeneration._shard_multimodal_inputs_for_cp = stand.spread
    cp_vision_frame_shard._grid_for_visual = lambda grids, _: grids  # it moves them to the pixels' device
    return model


def ends(case: dict[str, Any]) -> dict[str, Any]:
    """What `neat_packed_vlm_collater` says of the sequences in a pack, and their places, of which no mask is made."""
    counts = torch.tensor([0, *case["packed"]], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    longest = max(case["packed"])
    return {"position_ids": torch.zeros((3, 1, case["seq"]), dtype=torch.int64), "cu_seq_lens_q": counts,
            "cu_seq_lens_k": counts, "max_length_q": longest, "max_length_k": longest}


def micro_step(model: Any, tr: Tracker, case: dict[str, Any], *, first: bool) -> None:
    """One microbatch; the output lives as long as this function."""
    tr.phase = "fwd"
    given = FAMILIES[case["fields"]["model_type"].removesuffix("_moe")].inputs(case)
    taken = ("input_ids", "pixel_values", *PLACES * (case["fields"]["model_type"] == "gemma4"))
    given = {name: given[name] for name in taken} | {"labels": given["input_ids"].clone()}
    if not case["images"]:
        del given["pixel_values"]
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        tr.tag(given["attention_mask"], "input")
        masking_utils._ignore_causal_mask_sdpa = lambda *_, **__: True  # no token is padding
    elif case["fields"]["model_type"] in CAST:
        given["pixel_values"] = given["pixel_values"].to(torch.bfloat16)
    given |= ends(case) if "packed" in case else {}
    for one in given.values():
        if isinstance(one, torch.Tensor):
            tr.tag(one, "input")
    if case["fields"]["model_type"] == "gemma4":
        enable_gemma4_sdpa_fp32()
        stand.stand_in_for_filled(case)
    elif case["fields"]["model_type"] == "mistral3" and case["images"]:
        given["image_sizes"] = stand.Sizes([tuple(case["sides"])] * (case["batch"] * case["images"]))
    elif "sides" in case and case["images"]:
        stand.stand_in_for_grids(case)
        grids = stand.Numbers([stand.grid(case)] * (case["batch"] * case["images"]))
        given |= {"image_grid_thw": grids, "mm_token_type_ids": torch.empty(0)}
    if case["fields"]["model_type"] in ("qwen3_5", "qwen3_vl_moe"):
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        tr.tag(given["attention_mask"], "input")
    labels = given.pop("labels")
    out = model(**given, use_cache=False)
    loss = MaskedCrossEntropy()(logits=out.logits, labels=labels)
    if "mtp" in case:  # recipes/vlm/finetune.py: the output is named, and what it holds of further tokens
        further = out.mtp_per_depth_h
        loss = loss + calculate_mtp_loss(MaskedCrossEntropy(), mtp_per_depth_h=further, labels=labels, model=model,
                                         scaling_factor=0.1)
    if not case["images"] or case.get("policy"):
        del out  # as recipes/llm/train_ft.py
    if first:
        tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    tr.mark("bwd:end")


def units(model: Any) -> list[list[Any]]:
    """Wrapped modules, root first, each with the elements of its own group of parameters."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            size = sum(p.sharded_param.numel() for p in group.fsdp_params) if group else 0
            found.append([name, size])
    return found


def measure(case: dict[str, Any]) -> dict[str, Any]:
    named, case = case, whole(case)
    model = built(case).train()
    adapted(model, case)
    apply_parameter_freezing(model, case["freeze"])
    experts = {"moe_parallel_config": MoEParallelizerConfig()} if "ep" in case else {}
    wide = FSDP2Config(mp_policy=WIDE) if case.get("policy") else FSDP2Config()
    if case.get("policy"):
        model = model.float()
    mesh = MeshContext.build(wide, ParallelismSizes(ep_size=case.get("ep", 1), dp_replicate_size=case.get(
        "replicas")), world_size=case.get("world", 8), **experts, activation_checkpointing=bool(case.get("checkpoint")))
    model = parallelize_model(model, mesh)
    wrapped = units(model)
    if case.get("policy"):
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    if case.get("placed"):
        return {"case": named, "units": wrapped}
    halves, traffic = steps.two_steps(model, lambda tr, first: micro_step(model, tr, case, first=first))
    return {"case": named, "units": wrapped, **halves, "traffic": traffic}


def start(world: int) -> None:
    """Makes this process the first of so many ranks."""
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())


def main() -> str:
    start(8)
    return dense.lines({name: measure(CASES[name]) for name in sys.argv[1:] or list(CASES)})


if __name__ == "__main__":
    stand.stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
