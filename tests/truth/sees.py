"""Small models of transformers that read images: how one is built, which parts its tower has, what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

__all__ = ["FAMILIES", "IMAGE_TOKEN"]

IMAGE_TOKEN = 500
Given = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """Functions of a case: its model, modules of the tower by the name of their section, and inputs of a step."""

    built: Callable[[dict[str, Any]], Any]
    parts: Callable[[Any], dict[str, Any]]
    inputs: Callable[[dict[str, Any]], Given]


def _fields(case: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the `model_type` of the configurations inside."""
    inside = {name: {k: v for k, v in case["fields"][name].items() if k != "model_type"} for name in (
        "text_config", "vision_config")}
    return {**case["fields"], **inside, "attn_implementation": case.get("attention", "eager")}


def _ids(case: dict[str, Any], tokens: int) -> torch.Tensor:
    """Tokens of a batch: behind the first those of each image, with another between two images."""
    ids = torch.full((case["batch"], case["seq"]), 7)
    for image in range(case["images"]):
        start = 1 + image * (tokens + 1)
        ids[:, start:start + tokens] = IMAGE_TOKEN
    return ids


# ---- Gemma 3 ----------------------------------------------------------------------------------------------------
def _gemma3(case: dict[str, Any]) -> Any:
    return Gemma3ForConditionalGeneration(Gemma3Config(**_fields(case), image_token_index=IMAGE_TOKEN))


def _parts_of_gemma3(inner: Any) -> dict[str, Any]:
    tower = inner.vision_tower
    return {"patches": tower.embeddings, **{f"layer {i}": layer for i, layer in enumerate(tower.encoder.layers)},
            "norm": tower.post_layernorm, "projector": inner.multi_modal_projector}


def _inputs_of_gemma3(case: dict[str, Any]) -> Given:
    side, count = case["fields"]["vision_config"]["image_size"], case["batch"] * case["images"]
    ids = _ids(case, case["fields"]["mm_tokens_per_image"])
    return {"input_ids": ids, "pixel_values": torch.rand(count, 3, side, side),
            "token_type_ids": (ids == IMAGE_TOKEN).long()}


# ---- Gemma 4 ----------------------------------------------------------------------------------------------------
def _gemma4(case: dict[str, Any]) -> Any:
    return Gemma4ForConditionalGeneration(Gemma4Config(**_fields(case), image_token_id=IMAGE_TOKEN,
                                                       video_token_id=IMAGE_TOKEN + 1, audio_token_id=IMAGE_TOKEN + 2))


def _parts_of_gemma4(inner: Any) -> dict[str, Any]:
    tower = inner.vision_tower
    return {"visual": tower, "patches": tower.patch_embedder,
            **{f"layer {i}": layer for i, layer in enumerate(tower.encoder.layers)}, "pooler": tower.pooler,
            "projector": inner.embed_vision}


def _inputs_of_gemma4(case: dict[str, Any]) -> Given:
    """Images are padded to `padded` patches."""
    vision, count = case["fields"]["vision_config"], case["batch"] * case["images"]
    rows, columns = (side // vision["patch_size"] for side in case["sides"])
    grid = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), dim=-1).reshape(-1, 2)
    places = torch.nn.functional.pad(grid, (0, 0, 0, case["padded"] - rows * columns), value=-1)
    ids = _ids(case, rows * columns // vision["pooling_kernel_size"]**2)
    return {"input_ids": ids, "pixel_values": torch.rand(count, case["padded"], 3 * vision["patch_size"]**2),
            "image_position_ids": places.repeat(count, 1, 1), "mm_token_type_ids": (ids == IMAGE_TOKEN).int()}


# ---- Qwen 2.5 VL ------------------------------------------------------------------------------------------------
def _qwen2_5_vl(case: dict[str, Any]) -> Any:
    fields = {"attention": "sdpa", **case}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**_fields(fields), image_token_id=IMAGE_TOKEN,
                                                               video_token_id=IMAGE_TOKEN + 1))


def _qwen2_vl(case: dict[str, Any]) -> Any:
    fields = {"attention": "sdpa", **case}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(**_fields(fields), image_token_id=IMAGE_TOKEN,
                                                         video_token_id=IMAGE_TOKEN + 1))


def _qwen3_vl(case: dict[str, Any]) -> Any:
    fields = {"attention": "sdpa", **case}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(**_fields(fields), image_token_id=IMAGE_TOKEN,
                                                         video_token_id=IMAGE_TOKEN + 1))


def _qwen3_5(case: dict[str, Any]) -> Any:
    fields = {"attention": "sdpa", **case}
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(**_fields(fields), image_token_id=IMAGE_TOKEN,
                                                         video_token_id=IMAGE_TOKEN + 1))


def _parts_of_qwen3(inner: Any) -> dict[str, Any]:
    deep = {f"deep {i}": merger for i, merger in enumerate(inner.visual.deepstack_merger_list)}
    return {**_parts_of_qwen(inner), **deep}


def _parts_of_qwen(inner: Any) -> dict[str, Any]:
    tower = inner.visual
    return {"visual": tower, "patches": tower.patch_embed,
            **{f"layer {i}": layer for i, layer in enumerate(tower.blocks)}, "projector": tower.merger}


def _inputs_of_qwen(case: dict[str, Any]) -> Given:
    vision, count = case["fields"]["vision_config"], case["batch"] * case["images"]
    patch, frames = vision["patch_size"], vision["temporal_patch_size"]
    rows, columns = (side // patch for side in case["sides"])
    ids = _ids(case, rows * columns // vision["spatial_merge_size"]**2)
    return {"input_ids": ids, "pixel_values": torch.rand(count * rows * columns, 3 * frames * patch**2),
            "image_grid_thw": torch.tensor([[1, rows, columns]] * count),
            "mm_token_type_ids": (ids == IMAGE_TOKEN).int()}


# ---- Mistral 3 --------------------------------------------------------------------------------------------------
def _mistral3(case: dict[str, Any]) -> Any:
    fields = {**_fields(case), "text_config": case["fields"]["text_config"],
              "vision_config": case["fields"]["vision_config"]}
    return Mistral3ForConditionalGeneration(Mistral3Config(**fields, image_token_index=IMAGE_TOKEN))


def _parts_of_mistral(inner: Any) -> dict[str, Any]:
    tower = inner.vision_tower
    return {"patches": tower, **{f"layer {i}": layer for i, layer in enumerate(tower.transformer.layers)},
            "projector": inner.multi_modal_projector}


def _inputs_of_mistral(case: dict[str, Any]) -> Given:
    vision, count = case["fields"]["vision_config"], case["batch"] * case["images"]
    rows, columns = (side // vision["patch_size"] for side in case["sides"])
    ids = _ids(case, rows * columns // case["fields"].get("spatial_merge_size", 1)**2)
    return {"input_ids": ids, "pixel_values": torch.rand(count, 3, *case["sides"]),
            "image_sizes": torch.tensor([case["sides"]] * count)}


# ---- LLaVA ------------------------------------------------------------------------------------------------------
def _llava(case: dict[str, Any]) -> Any:
    fields = {**_fields(case), "text_config": case["fields"]["text_config"],
              "vision_config": case["fields"]["vision_config"]}
    return LlavaForConditionalGeneration(LlavaConfig(**fields, image_token_index=IMAGE_TOKEN))


def _parts_of_llava(inner: Any) -> dict[str, Any]:
    tower = inner.vision_tower
    if "transformer" in tower._modules:
        return _parts_of_mistral(inner)
    return {"patches": tower.embeddings, **{f"layer {i}": layer for i, layer in enumerate(tower.encoder.layers)},
            "norm": tower.post_layernorm, "projector": inner.multi_modal_projector}


def _inputs_of_llava(case: dict[str, Any]) -> Given:
    if "sides" in case:
        return _inputs_of_mistral(case)
    vision, count = case["fields"]["vision_config"], case["batch"] * case["images"]
    side = vision["image_size"]
    ids = _ids(case, (side // vision["patch_size"])**2)
    return {"input_ids": ids, "pixel_values": torch.rand(count, 3, side, side)}


def _internvl(case: dict[str, Any]) -> Any:
    fields = {**_fields(case), "text_config": case["fields"]["text_config"]}
    return InternVLForConditionalGeneration(InternVLConfig(**fields, image_token_id=IMAGE_TOKEN))


def _parts_of_internvl(inner: Any) -> dict[str, Any]:
    tower = inner.vision_tower
    return {"patches": tower.embeddings, **{f"layer {i}": layer for i, layer in enumerate(tower.encoder.layer)},
            "projector": inner.multi_modal_projector}


def _inputs_of_internvl(case: dict[str, Any]) -> Given:
    vision, count = case["fields"]["vision_config"], case["batch"] * case["images"]
    side = vision["image_size"][0]
    ids = _ids(case, (side // vision["patch_size"][0] // 2)**2)
    return {"input_ids": ids, "pixel_values": torch.rand(count, 3, side, side)}


FAMILIES = {
    "gemma3": Family(_gemma3, _parts_of_gemma3, _inputs_of_gemma3),
    "gemma4": Family(_gemma4, _parts_of_gemma4, _inputs_of_gemma4),
    "internvl": Family(_internvl, _parts_of_internvl, _inputs_of_internvl),
    "llava": Family(_llava, _parts_of_llava, _inputs_of_llava),
    "mistral3": Family(_mistral3, _parts_of_mistral, _inputs_of_mistral),
    "qwen3_5": Family(_qwen3_5, _parts_of_qwen, _inputs_of_qwen),
    "qwen3_vl": Family(_qwen3_vl, _parts_of_qwen3, _inputs_of_qwen),
    "qwen2_vl": Family(_qwen2_vl, _parts_of_qwen, _inputs_of_qwen),
    "qwen2_5_vl": Family(_qwen2_5_vl, _parts_of_qwen, _inputs_of_qwen),
}
