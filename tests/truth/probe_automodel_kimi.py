"""Measures whole steps of small Kimi-VLs that nemo-automodel 0.7.0 wraps, and its units of those with experts.

    python tests/truth/probe_automodel_kimi.py > tests/truth/tape/automodel-kimi-0.7.0-torch-2.13.0.json

As `probe_automodel_vision.py`: fake tensors over a fake process group, Automodel's own `apply_parameter_freezing`, the
model's output held until backward is over. Experts run on a GPU alone, so models that run have none. torch's attention
of the tower, which is plain operators, is written out, with its mask added in place, as without a dispatch mode
(`probe_kimi_tower.py` has the truth of it); grids and the numbers of image tokens come from a case's sizes.
`parameters`: of the whole model by module, the published size and a small one.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import image_stand_ins as stand
import probe_automodel_delta as own
import probe_automodel_dense as dense
import probe_automodel_mla as mla
import probe_automodel_step as steps
import probe_automodel_vision as vision
import torch
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.kimivl import model as kimi
from nemo_automodel.components.utils.model_utils import apply_parameter_freezing
from oracle.steps.setup import tag_shards
from oracle.steps.tracker import Tracker

TEXT = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": None, "kv_lora_rank": 80,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 3,
        "n_group": 1, "topk_group": 1}
ROUTED = {**TEXT, "first_k_dense_replace": 1}
VISION = {"patch_size": 14, "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3,
          "intermediate_size": 320, "init_pos_emb_height": 12, "init_pos_emb_width": 12}
PUBLISHED = {
    "vision": {},
    "text": {"hidden_size": 2048, "vocab_size": 163840, "intermediate_size": 11264, "num_hidden_layers": 27,
             "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
             "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
             "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408,
             "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}}
FROZEN, TRAINED = vision.FROZEN, vision.TRAINED
CASES: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": FROZEN, "ep": 8}, "frozen, two images": {"freeze": FROZEN, "ep": 8, "images": 2},
    "frozen, large images": {"freeze": FROZEN, "ep": 8, "sides": [448, 336]},
    "trained": {"freeze": TRAINED, "ep": 8}, "trained, two images": {"freeze": TRAINED, "ep": 8, "images": 2},
    "trained, large images": {"freeze": TRAINED, "ep": 8, "sides": [448, 336]},
    **{f"experts over {ep}{', trained' * trained}": {
        "freeze": TRAINED if trained else FROZEN, "ep": ep, "placed": True, "text": ROUTED}
       for ep in (2, 4, 8) for trained in (False, True)},
}


class Grids:
    """Sides of images in patches, where tensors have no values."""

    def __init__(self, sides: tuple[int, int], images: int) -> None:
        self.sides, self.images, self.dtype, self.device = sides, images, torch.int64, torch.device("cpu")

    def tolist(self) -> list[list[int]]:
        return [list(self.sides)] * self.images

    def __getitem__(self, at: Any) -> torch.Tensor:
        return torch.empty(self.images, dtype=torch.int64)


def whole(case: dict[str, Any]) -> dict[str, Any]:
    return {"images": 1, "batch": 1, "seq": 512, "sides": [112, 140], "text": TEXT, "vision": VISION, "world": 8,
            **case}


def built(case: dict[str, Any]) -> Any:
    config = kimi.KimiVLConfig(vision_config=dict(case["vision"]), text_config=dict(case["text"]))
    config.text_config.torch_dtype = torch.bfloat16
    with torch.device("meta"):
        model = kimi.KimiVLForConditionalGeneration(config, backend=own.BACKEND).to(torch.bfloat16)
    torch.nn.RMSNorm.forward = lambda self, x: stand.Normed.apply(x, self.weight)  # type: ignore[method-assign]
    for layer in model.model.language_model.layers.values():
        layer.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch")
        layer.self_attn.attn_func = lambda q, k, v, **_: mla.Attention.apply(q, k, v.contiguous())
    return model


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> torch.Tensor:
    """`vision_attention_sdpa`, whose slices of the mask are read from the device."""
    mask = torch.zeros([1, q.shape[0], q.shape[0]], dtype=torch.bool)
    q, k, v = (one.transpose(0, 1) for one in (q, k, v))
    found = scaled(q, k, v, mask)
    return found.transpose(0, 1).reshape(q.shape[1], -1)


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """torch's `_scaled_dot_product_attention_math` of 16 bits."""
    bias, number = torch.empty_like(mask, dtype=q.dtype), q.shape[-1] ** -0.25
    q_wide, k_wide, v_wide = (one.float() for one in (q, k, v))
    query = q_wide * number
    scores = torch.matmul(query, k_wide.transpose(-2, -1) * number)
    scores = Softmax.apply(scores)
    second = scores.to(q.dtype)
    out = torch.matmul(scores, v_wide).to(q.dtype)
    del second, bias
    return out


class Softmax(torch.autograd.Function):
    """`_safe_softmax` of scores to which a mask was added in place."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(scores)
        masked = torch.empty_like(scores, dtype=torch.bool)
        rows = masked.new_empty((*masked.shape[:-1], 1))
        del masked, rows
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(grad)


def micro_step(model: Any, tr: Tracker, case: dict[str, Any], *, first: bool) -> None:
    """One microbatch, as `kimi_vl_collate_fn` makes it; the output lives as long as this function."""
    tr.phase = "fwd"
    rows, columns = (side // 14 for side in case["sides"])
    images = case["batch"] * case["images"]
    ids = torch.randint(0, 1024, (case["batch"], case["seq"]))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids),
             "pixel_values": torch.rand(images * rows * columns, 3, 14, 14)}
    labels = ids.clone()
    for one in (*given.values(), labels):
        tr.tag(one, "input")
    out = model(**given, image_grid_hws=Grids((rows, columns), images))
    loss = MaskedCrossEntropy()(logits=out, labels=labels)
    if first:
        tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    tr.mark("bwd:end")


def measure(case: dict[str, Any]) -> dict[str, Any]:
    named, case = case, whole(case)
    model = built(case).train()
    apply_parameter_freezing(model, case["freeze"])
    sizes = ParallelismSizes(ep_size=case["ep"], dp_replicate_size=case.get("replicas"))
    mesh = MeshContext.build(FSDP2Config(), sizes, world_size=case["world"],
                             moe_parallel_config=MoEParallelizerConfig())
    model = parallelize_model(model, mesh)
    wrapped = vision.units(model)
    if case.get("placed"):
        return {"case": named, "units": wrapped}
    halves, traffic = steps.two_steps(model, lambda tr, first: micro_step(model, tr, case, first=first))
    return {"case": named, "units": wrapped, **halves, "traffic": traffic}


def counts() -> dict[str, Any]:
    """Parameters of a model by module."""
    found = {}
    for name, case in (("published", PUBLISHED), ("small", {"vision": VISION, "text": ROUTED})):
        model = built(case).model
        found[name] = {module: sum(p.numel() for p in part.parameters()) for module, part in model.named_children()}
    return found


class Put(torch.autograd.Function):
    """`x[mask] = values` of so many rows, in place: a mask's numbers, and the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        numbers = torch.empty(len(values), dtype=torch.int64)
        del numbers
        ctx.save_for_backward(mask)
        ctx.shape = values.shape
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        zeros = grad.new_zeros(ctx.shape)
        rest = grad.clone()
        numbers = torch.empty(ctx.shape[0], dtype=torch.int64)
        del numbers, zeros
        return rest, None, grad.new_empty(ctx.shape) if ctx.needs_input_grad[2] else None


def merged(self: Any, embeds: torch.Tensor, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """`_merge_with_image_features`."""
    shape = embeds.shape
    flat = embeds.reshape(-1, shape[-1])
    mask = ids.flatten() == self.media_placeholder_token_id
    flat = Put.apply(flat, mask, features)
    return flat.reshape(shape)


def stand_in() -> None:
    stand.stand_in()
    mla.stand_in()
    kimi.vision_attention_sdpa = plain_attention
    kimi.KimiVLModel._merge_with_image_features = merged


def main() -> str:
    vision.start(8)
    plain = whole({})
    return dense.lines({"sizes": plain, "text": {"routed": ROUTED}, "parameters": counts(),
                        **{name: measure(CASES[name]) for name in sys.argv[1:] or CASES}})


if __name__ == "__main__":
    stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
